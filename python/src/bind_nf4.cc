// Quantization on arrays: quantize, NF4Tensor, and the pieces.
#include <pybind11/stl.h>

#include <optional>

#include "array.h"
#include "base/check.h"
#include "nf4_tensor.h"
#include "shared_context.h"

namespace qlora::python {
namespace {

using pybind11::literals::operator""_a;

template <typename T>
T Lookup(const char* what, const std::string& name,
         std::initializer_list<std::pair<const char*, T>> known) {
  std::string names;
  for (const auto& [text, value] : known) {
    if (name == text) return value;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", text);
  }
  ThrowInvalidInput("{}: expected one of {}, found '{}'", what, names, name);
}

// 16 (or 256) values of a table for Python; the table lives as long as the program.
py::object Table(const float* values, std::int64_t count) {
  return ToPython(const_cast<float*>(values), DType::kF32, {count}, nullptr, true);
}

std::shared_ptr<const void> OwnerOf(const NF4Tensor& t) {
  return std::make_shared<QuantizedMatrix>(t.matrix);
}

py::object Field(const NF4Tensor& t, const void* data, DType dtype, std::int64_t count) {
  return ToPython(const_cast<void*>(data), dtype, {count}, OwnerOf(t));
}

py::object Scalers(const NF4Tensor& t) {
  const std::int64_t blocks = t.matrix.view().blocks();
  const NewArray out = MakeArray(DType::kF32, {blocks});
  WithoutLock([&] { LoadScales(t.matrix.view(), 0, blocks, out.view.Row<float>(0)); });
  return out.object;
}

DType ScaleDType(ScaleType type) {
  switch (type) {
    case ScaleType::kF32:
      return DType::kF32;
    case ScaleType::kF16:
      return DType::kF16;
    case ScaleType::kBF16:
      return DType::kBF16;
    case ScaleType::kDoubleBnb:
      return DType::kU8;
    case ScaleType::kDoubleTorchao:
      return DType::kI8;
  }
  return DType::kF32;
}

bool IsDoubleQuantized(const NF4Tensor& t) { return t.matrix.view().nested_scales != nullptr; }

py::object QuantizationFactor(const NF4Tensor& t) {
  const QuantizedView& q = t.matrix.view();
  if (!IsDoubleQuantized(t)) return py::none();
  return Field(t, q.nested_scales, DType::kF32, BlockCount(q.blocks(), q.nested_block_size));
}

py::object ZeroPoint(const NF4Tensor& t) {
  const QuantizedView& q = t.matrix.view();
  if (q.shifts == nullptr) return py::none();
  return Field(t, q.shifts, DType::kF32, q.blocks());
}

py::object DequantizeTensor(const NF4Tensor& t, const py::object& dtype, const py::object& out,
                            const ContextPtr& context) {
  const DType type = out.is_none() ? ParseDType(dtype) : Array("out", out).dtype();
  const NewArray to = OutputArray(out, type, t.shape);
  ContextOr(context)->Run([&](Context& c) {
    // One row of all values is the same memory, whatever the shape.
    MatrixView view = to.view;
    if (view.stride == view.cols) {
      view.rows = t.matrix.rows();
      view.cols = view.stride = t.matrix.cols();
    }
    Dequantize(c, t.matrix.view(), view);
  });
  return to.object;
}

NF4Tensor QuantizeArray(const py::object& w, const QuantizeArguments& arguments,
                        const py::object& importance, const ContextPtr& context) {
  const Array values("w", w);
  QuantizeOptions options = arguments.ToOptions();
  std::optional<Array> weights;
  if (!importance.is_none()) {
    weights.emplace("importance", importance);
    options.importance = weights->Flat<float>();
  }
  return {
      ContextOr(context)->Run([&](Context& c) { return Quantize(c, values.matrix(), options); }),
      values.shape()};
}

// What the parts of a matrix point to while Python holds it.
NF4Tensor FromArrays(const py::object& quantized_data, const py::object& scalers,
                     const std::vector<std::int64_t>& shape, std::int64_t block_size,
                     const std::string& quant_type, const py::object& nested_scalers,
                     const py::object& nested_code, float offset, std::int64_t scaler_block_size) {
  auto parts = std::make_shared<std::vector<Array>>();
  parts->reserve(4);
  const auto add = [&](const char* name, const py::object& object, DType dtype,
                       std::int64_t count) {
    const Array& array = parts->emplace_back(name, object);
    if (array.size() != count) {
      ThrowInvalidInput("{}: expected {} values, found {}", name, count, array.size());
    }
    return array.FlatData(dtype);
  };
  if (shape.empty() || block_size < 1 || scaler_block_size < 1) {
    ThrowInvalidInput("expected a shape and positive block sizes");
  }
  QuantizedView q;
  q.cols = shape.back();
  q.rows = 1;
  for (std::size_t d = 0; d + 1 < shape.size(); ++d) q.rows *= shape[d];
  if (q.rows < 1 || q.cols < 1) ThrowInvalidInput("expected a shape of positive sizes");
  q.block_size = block_size;
  q.code = quant_type == "fp4" ? kFp4Codebook.data() : kNf4Codebook.data();
  if (quant_type != "nf4" && quant_type != "fp4") {
    ThrowInvalidInput("quant_type: expected one of nf4, fp4, found '{}'", quant_type);
  }
  q.packed = static_cast<const std::uint8_t*>(
      add("quantized_data", quantized_data, DType::kU8, PackedBytes(q.size())));
  if (nested_scalers.is_none()) {
    q.scales = add("scalers", scalers, DType::kF32, q.blocks());
  } else {
    q.scale_type = ScaleType::kDoubleBnb;
    q.scales = add("scalers", scalers, DType::kU8, q.blocks());
    q.nested_block_size = scaler_block_size;
    q.nested_scales = static_cast<const float*>(add("nested_scalers", nested_scalers, DType::kF32,
                                                    BlockCount(q.blocks(), scaler_block_size)));
    q.nested_code = static_cast<const float*>(add("nested_code", nested_code, DType::kF32, 256));
    q.offset = offset;
  }
  // The arrays are Python's: dropping them needs the interpreter's lock.
  const std::shared_ptr<const void> owner(parts.get(), [parts](const void*) mutable {
    const py::gil_scoped_acquire acquire;
    parts.reset();
  });
  parts.reset();
  return {QuantizedMatrix(q, owner), shape};
}

py::tuple DoubleQuantize(const py::object& scalers, std::int64_t scaler_block_size,
                         const std::string& scheme, const std::string& rule) {
  const Array values("scalers", scalers);
  const std::span<const float> from = values.Flat<float>();
  const ScaleType type = ParseScaleType("double_" + scheme);
  const EncodeRule how = ParseRule(rule);
  const auto result = WithoutLock([&] {
    return std::make_shared<DoubleQuantizedScales>(
        DoubleQuantizeScales(from, type, scaler_block_size, how));
  });
  return py::make_tuple(
      ToPython(result->codes.data(), ScaleDType(type), {std::ssize(result->codes)}, result),
      ToPython(result->nested_scales.data(), DType::kF32, {std::ssize(result->nested_scales)},
               result),
      result->offset);
}

py::object DequantizeScalers(const py::object& codes, const py::object& factors, float mean,
                             std::int64_t scaler_block_size, const std::string& scheme) {
  const Array code_values("codes", codes);
  const Array factor_values("factors", factors);
  const ScaleType type = ParseScaleType("double_" + scheme);
  const auto n = static_cast<std::size_t>(code_values.size());
  const std::span<const std::uint8_t> bytes(
      static_cast<const std::uint8_t*>(code_values.FlatData(ScaleDType(type))), n);
  const std::span<const float> nested = factor_values.Flat<float>();
  const NewArray out = MakeArray(DType::kF32, {code_values.size()});
  WithoutLock([&] {
    DequantizeScales(bytes, nested, mean, type, scaler_block_size, {out.view.Row<float>(0), n});
  });
  return out.object;
}

py::object NearestCodes(const py::object& x, const py::object& codebook) {
  const Array values("x", x);
  const Array table("codebook", codebook);
  const std::span<const float> from = values.Flat<float>();
  const std::span<const float> entries = table.Flat<float>();
  const NewArray out = MakeArray(DType::kU8, values.shape());
  WithoutLock([&] {
    QuantizeNearest(from, entries, {out.view.Row<std::uint8_t>(0), from.size()});
  });
  return out.object;
}

py::list MemoryRows(const QuantizeArguments& arguments) {
  py::list rows;
  for (const ModelMemory& memory : MemoryTable(arguments.ToOptions())) {
    rows.append(py::dict("model"_a = memory.name, "parameters"_a = memory.parameters,
                         "linear_parameters"_a = memory.linear_parameters,
                         "fp16_bytes"_a = memory.fp16_bytes, "fp32_bytes"_a = memory.fp32_bytes,
                         "linear_bytes"_a = memory.linear_bytes,
                         "total_bytes"_a = memory.total_bytes, "ratio"_a = memory.ratio()));
  }
  return rows;
}

void BindNf4Tensor(py::module_& module) {
  py::class_<NF4Tensor>(module, "NF4Tensor",
                        "A 4-bit matrix. Immutable in size; its arrays are views, not copies.")
      .def_static("from_arrays", &FromArrays, "quantized_data"_a, "scalers"_a, "shape"_a,
                  py::kw_only(), "block_size"_a = 64, "quant_type"_a = "nf4",
                  "nested_scalers"_a = py::none(), "nested_code"_a = py::none(), "offset"_a = 0.0f,
                  "scaler_block_size"_a = 256,
                  "A tensor over arrays in bitsandbytes' layout, which it borrows: quantized_data "
                  "uint8 ((size + 1) // 2); scalers float32 (n_blocks), or with nested_scalers "
                  "(float32, one per scaler_block_size scales) their uint8 codes, nested_code "
                  "float32 (256) and the offset. Raises Error: other dtypes or sizes.")
      .def_property_readonly(
          "shape", [](const NF4Tensor& t) { return py::tuple(py::cast(t.shape)); },
          "tuple of int: the shape before quantization.")
      .def_property_readonly(
          "size", [](const NF4Tensor& t) { return t.matrix.view().size(); }, "Number of values.")
      .def_property_readonly(
          "block_size", [](const NF4Tensor& t) { return t.matrix.view().block_size; },
          "Values that share a scale.")
      .def_property_readonly(
          "n_blocks", [](const NF4Tensor& t) { return t.matrix.view().blocks(); },
          "Number of scales.")
      .def_property_readonly(
          "scaler_block_size", [](const NF4Tensor& t) { return t.matrix.view().nested_block_size; },
          "Scales that share an entry of quantization_factor.")
      .def_property_readonly(
          "quantized_data",
          [](const NF4Tensor& t) {
            const QuantizedView& q = t.matrix.view();
            return Field(t, q.packed, DType::kU8, PackedBytes(q.size()));
          },
          "uint8 ((size + 1) // 2): two codes a byte, the first one in the high nibble.")
      .def_property_readonly(
          "quantized_scalers",
          [](const NF4Tensor& t) {
            const QuantizedView& q = t.matrix.view();
            return Field(t, q.scales, ScaleDType(q.scale_type), q.blocks());
          },
          "(n_blocks) as stored: float32, float16, a bfloat16 Tensor, uint8 (bitsandbytes) or int8 "
          "(torchao).")
      .def_property_readonly("quantization_factor", &QuantizationFactor,
                             "float32, one per scaler_block_size scales: bitsandbytes' nested "
                             "absmax or torchao's factor. None without double quantization.")
      .def_property_readonly(
          "scaler_mean", [](const NF4Tensor& t) { return t.matrix.view().offset; },
          "The mean that was subtracted from the scales; 0 without double quantization.")
      .def_property_readonly("scalers", &Scalers, "float32 (n_blocks): the decoded scales, a copy.")
      .def_property_readonly("zero_point", &ZeroPoint,
                             "float32 (n_blocks), added after decoding; None without.")
      .def_property_readonly(
          "nf4",
          [](const NF4Tensor& t) {
            return ToPython(const_cast<float*>(t.matrix.view().code), DType::kF32, {16}, OwnerOf(t),
                            true);
          },
          "float32 (16): the value of each code.")
      .def_property_readonly(
          "size_bytes", [](const NF4Tensor& t) { return t.matrix.bytes(); },
          "Bytes of codes, scales, nested scales, mean and zero points.")
      .def_property_readonly(
          "bits_per_weight", [](const NF4Tensor& t) { return t.matrix.bits_per_weight(); },
          "8 * size_bytes / size.")
      .def_property_readonly(
          "compression_ratio", [](const NF4Tensor& t) { return t.matrix.compression_ratio(); },
          "Bytes as float32 / size_bytes.")
      .def(
          "dequantize", &DequantizeTensor, "dtype"_a = "float32", "out"_a = py::none(),
          py::kw_only(), "context"_a = py::none(),
          "code * scale (+ zero point), rounded once to dtype (float32, bfloat16, float16), in the "
          "shape before quantization; into `out` of that shape when given. bfloat16 comes as a "
          "Tensor. Raises Error: another dtype or shape, read-only memory.")
      .def("get_original_weight", &DequantizeTensor, "dtype"_a = "float32", "out"_a = py::none(),
           py::kw_only(), "context"_a = py::none(), "The same as dequantize.")
      .def("__repr__", [](const NF4Tensor& t) {
        return fmt::format("<NF4Tensor {} x {}, blocks of {}, {:.4f} bits per weight>",
                           t.matrix.rows(), t.matrix.cols(), t.matrix.view().block_size,
                           t.matrix.bits_per_weight());
      });
}

}  // namespace

ScaleType ParseScaleType(const std::string& name) {
  return Lookup<ScaleType>("scale_type", name,
                           {{"float32", ScaleType::kF32},
                            {"float16", ScaleType::kF16},
                            {"bfloat16", ScaleType::kBF16},
                            {"double_bnb", ScaleType::kDoubleBnb},
                            {"double_torchao", ScaleType::kDoubleTorchao}});
}

EncodeRule ParseRule(const std::string& name) {
  return Lookup<EncodeRule>("rule", name,
                            {{"cpu", EncodeRule::kBnbCpu},
                             {"cuda", EncodeRule::kBnbCuda},
                             {"torchao", EncodeRule::kTorchao}});
}

QuantizeOptions QuantizeArguments::ToOptions() const {
  QuantizeOptions options;
  options.type = Lookup<QuantType>("quant_type", quant_type,
                                   {{"nf4", QuantType::kNf4}, {"fp4", QuantType::kFp4}});
  options.block_size = block_size;
  options.scale_type = ParseScaleType(scale_type);
  options.scaler_block_size = scaler_block_size;
  options.rule = ParseRule(rule);
  options.scale_search = scale_search;
  options.row_blocks = row_blocks;
  options.zero_point = zero_point;
  options.name = name;
  return options;
}

void BindNf4(py::module_& module) {
  BindNf4Tensor(module);
  module.attr("NF4_CODEBOOK") = Table(kNf4Codebook.data(), 16);
  module.attr("FP4_CODEBOOK") = Table(kFp4Codebook.data(), 16);
  module.attr("NF4_MAX_ERROR") = kNf4MaxError;

  module.def(
      "quantize",
      [](const py::object& w, const std::string& quant_type, std::int64_t block_size,
         const std::string& scale_type, std::int64_t scaler_block_size, const std::string& rule,
         bool scale_search, const py::object& importance, bool row_blocks, bool zero_point,
         const std::string& name, const ContextPtr& context) {
        return QuantizeArray(w,
                             {quant_type, block_size, scale_type, scaler_block_size, rule,
                              scale_search, row_blocks, zero_point, name},
                             importance, context);
      },
      "w"_a, py::kw_only(), "quant_type"_a = "nf4", "block_size"_a = 64,
      "scale_type"_a = "double_bnb", "scaler_block_size"_a = 256, "rule"_a = "cpu",
      "scale_search"_a = false, "importance"_a = py::none(), "row_blocks"_a = false,
      "zero_point"_a = false, "name"_a = "", "context"_a = py::none(),
      R"(Quantizes an array of float32, bfloat16 or float16 to 4 bits.

w: any shape, rows of consecutive values; a numpy array or anything with __dlpack__. Not copied.
quant_type: "nf4" (arXiv:2305.14314, appendix E) or "fp4" (bitsandbytes).
block_size: values that share a scale, along the row-major order; the last block may be short.
scale_type: "float32", "float16", "bfloat16", "double_bnb" (256 codes, mean; bitsandbytes) or
    "double_torchao" (int8, mean); scaler_block_size: scales per nested block.
rule: "cpu" or "cuda" (bitsandbytes' encoders), or "torchao".
scale_search: the scale of least squared error instead of the largest absolute value;
    importance: float32, a weight >= 0 of the error of each column.
row_blocks: every row starts a block. zero_point: shift each block by the middle of its range.
name: of the tensor, for errors. context: threads to use.
Returns an NF4Tensor. The interpreter's lock is released.
Raises Error (a ValueError): NaN or Inf (with its index), bad options.)");

  module.def(
      "to_nf4",
      [](const py::object& w, std::int64_t block_size, std::int64_t scaler_block_size,
         const ContextPtr& context) {
        return QuantizeArray(w,
                             {.block_size = block_size,
                              .scale_type = "double_torchao",
                              .scaler_block_size = scaler_block_size,
                              .rule = "torchao"},
                             py::none(), context);
      },
      "w"_a, "block_size"_a = 64, "scaler_block_size"_a = 256, py::kw_only(),
      "context"_a = py::none(),
      "torchao's to_nf4: w (any shape; float32, bfloat16 or float16) to an NF4Tensor with its "
      "codes, scales and arithmetic (in the dtype of w), for any size. Raises Error: NaN or Inf, "
      "with its index.");

  module.def(
      "quantize_nf4",
      [](const py::object& x, std::int64_t block_size, const ContextPtr& context) {
        const NF4Tensor t = QuantizeArray(x, {.block_size = block_size, .scale_type = "float32"},
                                          py::none(), context);
        const QuantizedView& q = t.matrix.view();
        return py::make_tuple(Field(t, q.packed, DType::kU8, PackedBytes(q.size())),
                              Field(t, q.scales, DType::kF32, q.blocks()));
      },
      "x"_a, "block_size"_a = 64, py::kw_only(), "context"_a = py::none(),
      "NF4 (arXiv:2305.14314) with float32 scales: x (n values of float32, bfloat16 or float16) "
      "to (packed uint8 ((n + 1) // 2), absmax float32 (ceil(n / block_size))). Raises Error: NaN "
      "or Inf, with its index.");

  module.def(
      "dequantize_nf4",
      [](const py::object& packed, const py::object& absmax, const py::object& shape,
         std::int64_t block_size, const py::object& dtype, const py::object& out,
         const ContextPtr& context) {
        const auto sizes = py::isinstance<py::int_>(shape)
                               ? std::vector<std::int64_t>{shape.cast<std::int64_t>()}
                               : shape.cast<std::vector<std::int64_t>>();
        const NF4Tensor t =
            FromArrays(packed, absmax, sizes, block_size, "nf4", py::none(), py::none(), 0, 256);
        return DequantizeTensor(t, dtype, out, context);
      },
      "packed"_a, "absmax"_a, "shape"_a, "block_size"_a = 64, "dtype"_a = "float32",
      "out"_a = py::none(), py::kw_only(), "context"_a = py::none(),
      "The inverse of quantize_nf4: code * absmax, rounded once to dtype (float32, bfloat16 or "
      "float16), in the given shape (int or ints). Raises Error: sizes that do not agree.");

  module.def("quantize_tensor_nearest", &NearestCodes, "x"_a, "codebook"_a,
             "uint8 index of the nearest entry of the ascending float32 codebook (2 to 256 values) "
             "for each float32 of x; the lower one on a tie. Raises Error: NaN, a bad codebook.");
  module.def("double_quantize_scalers", &DoubleQuantize, "scalers"_a, "scaler_block_size"_a = 256,
             "scheme"_a = "torchao", "rule"_a = "cpu",
             "(codes (n), factors float32 (ceil(n / scaler_block_size)), mean) of float32 scales "
             "(n). scheme \"torchao\": int8 codes, round((s - mean) * factor), factor = 128 / "
             "max|s - mean|; \"bnb\": bitsandbytes' uint8 codes of the signed dynamic map, factors "
             "= max|s - mean|. Raises Error: scales not finite.");
  module.def("dequantize_scalers", &DequantizeScalers, "codes"_a, "factors"_a, "mean"_a,
             "scaler_block_size"_a = 256, "scheme"_a = "torchao",
             "float32 (n) scales back from what double_quantize_scalers returned. Raises Error: "
             "other dtypes, sizes that do not agree.");
  module.def(
      "convert_to_norm_float_weight",
      [](const py::object& w, std::int64_t block_size, const std::string& rule,
         const ContextPtr& context) {
        const NF4Tensor t =
            QuantizeArray(w, {.block_size = block_size, .scale_type = "float32", .rule = rule},
                          py::none(), context);
        return Field(t, t.matrix.view().packed, DType::kU8, PackedBytes(t.matrix.view().size()));
      },
      "w"_a, "block_size"_a = 64, "rule"_a = "torchao", py::kw_only(), "context"_a = py::none(),
      "The packed codes alone, uint8 ((n + 1) // 2), by the true absmax of each block of w "
      "(float32, bfloat16 or float16). Raises Error: NaN or Inf, with its index.");
  module.def(
      "bits_per_weight",
      [](std::int64_t block_size, const std::string& scale_type, std::int64_t scaler_block_size) {
        return BitsPerWeight(QuantizeArguments{.block_size = block_size,
                                               .scale_type = scale_type,
                                               .scaler_block_size = scaler_block_size}
                                 .ToOptions());
      },
      "block_size"_a = 64, "scale_type"_a = "double_bnb", "scaler_block_size"_a = 256,
      "Bits of one weight in whole blocks with its share of the scales (a float). Raises Error: "
      "a scale_type that is none.");
  module.def(
      "memory_table",
      [](std::int64_t block_size, bool double_quant) {
        return MemoryRows(
            {.block_size = block_size, .scale_type = double_quant ? "double_bnb" : "float32"});
      },
      "block_size"_a = 64, "double_quant"_a = true,
      "LLaMA 7B, 13B, 33B, 65B and Llama 2 70B with 4-bit linears, embeddings and head in 16 "
      "bits: a list of dicts, sizes in bytes.");
}

}  // namespace qlora::python
