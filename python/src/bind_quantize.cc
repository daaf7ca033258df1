// Functions from values to 4-bit codes and back.
#include <pybind11/stl.h>

#include <optional>
#include <variant>
#include <vector>

#include "array.h"
#include "nf4_tensor.h"

namespace qlora::python {
namespace {

using pybind11::literals::operator""_a;

// n or (n,) or a shape, as numpy takes them.
using Shape = std::variant<std::int64_t, std::vector<std::int64_t>>;

// Returns the values of a table for Python; the table lives as long as the program.
py::object Table(const float* values, std::int64_t count) {
  // Read-only: one table serves the whole process.
  return ToPython(const_cast<float*>(values), DType::kF32, {count}, nullptr, true);
}

py::object NearestCodes(const py::object& x, const py::object& codebook) {
  const Floats values("x", x);
  const Floats table("codebook", codebook);
  const NewArray out = MakeArray(DType::kU8, values.shape());
  // Other threads of Python run meanwhile. No object of Python is touched inside.
  WithoutLock([&] {
    QuantizeNearest(values.values(), table.values(),
                    {out.view.Row<std::uint8_t>(0), values.values().size()});
  });
  return out.object;
}

// Binds all forms by name.
void BindQuantizeForms(py::module_& module) {
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
      R"(Quantizes an array of float32, bfloat16, float16 or float64 to 4 bits.

w: any shape, rows of consecutive values; a numpy array or anything with __dlpack__. Not copied,
    but for float64, which is rounded to float32 (nearest, ties to even) first.
quant_type: "nf4" (arXiv:2305.14314, appendix E) or "fp4" (bitsandbytes).
block_size: values that share a scale, along the row-major order; the last block may be short.
scale_type: "float32", "float16", "bfloat16", "double_bnb" (256 codes, mean; bitsandbytes) or
    "double_torchao" (int8, mean); scaler_block_size: scales per nested block.
rule: "cpu" or "cuda" (bitsandbytes' encoders), or "torchao".
scale_search: the scale of least squared error instead of the largest absolute value;
    importance: floats, a weight >= 0 of the error of each column.
row_blocks: every row starts a block. zero_point: shift each block by the middle of its range.
name: of the tensor, for errors. context: threads to use.
Returns an NF4Tensor. The interpreter's lock is released.
Raises Error (a ValueError): NaN or Inf (with its index), bad options.)");

  module.def(
      "to_nf4",
      [](const py::object& w, std::int64_t block_size, std::int64_t scaler_block_size,
         const ContextPtr& context) {
        // Codes, scales and rounding of torchao, so that tensors of both are equal.
        return QuantizeArray(w,
                             {.block_size = block_size,
                              .scale_type = "double_torchao",
                              .scaler_block_size = scaler_block_size,
                              .rule = "torchao"},
                             py::none(), context);
      },
      "w"_a, "block_size"_a = 64, "scaler_block_size"_a = 256, py::kw_only(),
      "context"_a = py::none(),
      "torchao's to_nf4: w (any shape; float32, bfloat16 or float16; float64 is rounded to "
      "float32) to an NF4Tensor with its codes, scales and arithmetic (in the dtype of w), for any "
      "size. Raises Error: NaN or Inf, with its index.");
}

// Binds NF4 with float32 scales, and codes alone.
void BindPlainArrays(py::module_& module) {
  module.def(
      "quantize_nf4",
      [](const py::object& x, std::int64_t block_size, const ContextPtr& context) {
        // Views of one storage: the tensor goes, the two arrays keep its memory.
        const NF4Tensor t = QuantizeArray(x, {.block_size = block_size, .scale_type = "float32"},
                                          py::none(), context);
        const compat::View& q = t.matrix.view();
        return py::make_tuple(PackedCodes(t), Field(t, q.scales, DType::kF32, q.blocks()));
      },
      // The block of the QLoRA paper and of bitsandbytes.
      "x"_a, "block_size"_a = 64, py::kw_only(), "context"_a = py::none(),
      "NF4 (arXiv:2305.14314) with float32 scales: x (n values of float32, bfloat16, float16 or "
      "float64, which is rounded to float32) to (packed uint8 ((n + 1) // 2), absmax float32 "
      "(ceil(n / block_size))). Raises Error: NaN or Inf, with its index.");

  module.def(
      "dequantize_nf4",
      [](const py::object& packed, const py::object& absmax, const Shape& shape,
         std::int64_t block_size, const py::object& dtype, const py::object& out,
         const ContextPtr& context) {
        const auto* count = std::get_if<std::int64_t>(&shape);
        const auto sizes = count != nullptr ? std::vector<std::int64_t>{*count}
                                            : std::get<std::vector<std::int64_t>>(shape);
        const NF4Tensor t = FromArrays({.quantized_data = packed,
                                        .scalers = absmax,
                                        .shape = sizes,
                                        .block_size = block_size});
        return DequantizeTensor(t, dtype, out, context);
      },
      "packed"_a, "absmax"_a, "shape"_a, "block_size"_a = 64, "dtype"_a = "float32",
      "out"_a = py::none(), py::kw_only(), "context"_a = py::none(),
      "The inverse of quantize_nf4: code * absmax, rounded once to dtype (float32, bfloat16 or "
      "float16), in the given shape (int or ints). Raises Error: sizes that do not agree.");

  module.def(
      "quantize_tensor_nearest", &NearestCodes, "x"_a, "codebook"_a,
      "uint8 index of the nearest entry of the ascending codebook (2 to 256 values) for each "
      "value of x, by float32 midpoints; the lower one on a tie. Both of any float dtype; "
      "float64 is rounded to float32. Raises Error: NaN, a bad codebook.");
  module.def(
      "convert_to_norm_float_weight",
      [](const py::object& w, std::int64_t block_size, const std::string& rule,
         const ContextPtr& context) {
        const NF4Tensor t =
            QuantizeArray(w, {.block_size = block_size, .scale_type = "float32", .rule = rule},
                          py::none(), context);
        return PackedCodes(t);
      },
      "w"_a, "block_size"_a = 64, "rule"_a = "torchao", py::kw_only(), "context"_a = py::none(),
      "The packed codes alone, uint8 ((n + 1) // 2), by the true absmax of each block of w "
      "(float32, bfloat16, float16, or float64 rounded to float32). Raises Error: NaN or Inf, with "
      "its index.");
}

}  // namespace

NF4Tensor QuantizeArray(const py::object& w, const QuantizeArguments& arguments,
                        const py::object& importance, const ContextPtr& context) {
  // numpy makes float64 by default; float64 is the one type that is copied.
  const Array values = WithoutFloat64("w", w);
  compat::Options options = arguments.ToOptions();
  std::optional<Floats> weights;
  if (!importance.is_none()) {
    weights.emplace("importance", importance);
    // A view: `weights` outlives the call.
    options.importance = weights->values();
  }
  return {ContextOr(context)->Run(
              [&](Context& c) { return compat::Quantize(c, values.matrix(), options); }),
          values.shape()};
}

void BindQuantize(py::module_& module) {
  module.attr("NF4_CODEBOOK") = Table(kNf4Codebook.data(), 16);
  module.attr("FP4_CODEBOOK") = Table(kFp4Codebook.data(), 16);
  // Half of the widest gap between values: the largest error of a weight, in units of its absmax.
  module.attr("NF4_MAX_ERROR") = kNf4MaxError;
  BindQuantizeForms(module);
  BindPlainArrays(module);
}

}  // namespace qlora::python
