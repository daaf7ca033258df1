// NF4Tensor: its making from arrays, its parts as arrays, and decoding.
#include <pybind11/stl.h>

#include "array.h"
#include "base/check.h"
#include "nf4_tensor.h"

namespace qlora::python {
namespace {

using pybind11::literals::operator""_a;

std::shared_ptr<const void> OwnerOf(const NF4Tensor& t) {
  // A copy of the handle, not of the codes: views stay valid when the tensor is dropped.
  return std::make_shared<compat::Matrix>(t.matrix);
}

py::object Scalers(const NF4Tensor& t) {
  const std::int64_t blocks = t.matrix.view().blocks();
  const NewArray out = MakeArray(DType::kF32, {blocks});
  // A copy for every form: scales in codes exist as floats only when they are asked for.
  WithoutLock([&] { compat::LoadScales(t.matrix.view(), 0, blocks, out.view.Row<float>(0)); });
  return out.object;
}

py::object QuantizedScalers(const NF4Tensor& t) {
  const compat::View& q = t.matrix.view();
  return Field(t, q.scales, ScaleDType(q.scale_form), q.blocks());
}

py::object QuantizationFactor(const NF4Tensor& t) {
  const compat::View& q = t.matrix.view();
  // None rather than an empty array: code that multiplies by it fails at once.
  if (q.nested.absmax == nullptr) return py::none();
  return Field(t, q.nested.absmax, DType::kF32, BlockCount(q.blocks(), q.nested.block_size));
}

py::object ZeroPoint(const NF4Tensor& t) {
  const compat::View& q = t.matrix.view();
  if (q.shifts == nullptr) return py::none();
  return Field(t, q.shifts, DType::kF32, q.blocks());
}

py::object Codebook(const NF4Tensor& t) {
  // Read-only, because the 16 values may be the table of the whole program.
  return ToPython(const_cast<float*>(t.matrix.view().code), DType::kF32, {16}, OwnerOf(t), true);
}

std::string Repr(const NF4Tensor& t) {
  // Never the values: a debugger prints objects of any size.
  return fmt::format("<NF4Tensor {} x {}, blocks of {}, {:.4f} bits per weight>", t.matrix.rows(),
                     t.matrix.cols(), t.matrix.view().block_size, t.matrix.bits_per_weight());
}

py::object DequantizeCodes(const py::array& value, const py::object& nf4) {
  CheckIsPlain("value", value);
  // numpy keeps the shape of the codes and the dtype of the table, and checks the indices.
  return py::module_::import("numpy").attr("take")(nf4, value);
}

// NF4Tensor is copied by value: a copy is a handle of the same storage.
using Class = py::class_<NF4Tensor>;

void BindMaking(Class& tensor) {
  tensor
      .def_static(
          "from_arrays",
          [](const py::object& quantized_data, const py::object& scalers,
             const std::vector<std::int64_t>& shape, std::int64_t block_size,
             const std::string& quant_type, const py::object& nested_scalers,
             const py::object& nested_code, float offset, std::int64_t scaler_block_size,
             const py::object& nf4, const py::object& zero_point, bool row_blocks) {
            return FromArrays({quantized_data, scalers, shape, block_size, quant_type,
                               nested_scalers, nested_code, offset, scaler_block_size, nf4,
                               zero_point, row_blocks});
          },
          "quantized_data"_a, "scalers"_a, "shape"_a, py::kw_only(), "block_size"_a = 64,
          "quant_type"_a = "nf4", "nested_scalers"_a = py::none(), "nested_code"_a = py::none(),
          "offset"_a = 0.0f, "scaler_block_size"_a = 256, "nf4"_a = py::none(),
          "zero_point"_a = py::none(), "row_blocks"_a = false,
          R"(A tensor over arrays, which it borrows.

quantized_data: uint8 ((size + 1) // 2), the first code in the high nibble.
scalers: (n_blocks) of float32, float16 or bfloat16; or codes with nested_scalers (one per
    scaler_block_size scales) and offset, the mean: uint8 codes as bitsandbytes has them, with
    nested_code (256 floats), or int8 codes as torchao has them, with its quantization_factor as
    nested_scalers, whose dtype is that of the arithmetic.
nf4: the 16 values of the codes; None: those of quant_type, or torchao's for int8 codes.
zero_point: floats (n_blocks), added after decoding. row_blocks: every row starts a block.
Raises Error: other dtypes or sizes.)")
      .def(py::pickle(&ToDict, &FromDict));
}

void BindShape(Class& tensor) {
  tensor
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
          "scaler_block_size", [](const NF4Tensor& t) { return t.matrix.view().nested.block_size; },
          "Scales that share an entry of quantization_factor.");
}

void BindParts(Class& tensor) {
  tensor
      .def_property_readonly("quantized_data", &PackedCodes,
                             "uint8 ((size + 1) // 2): two codes a byte, the first one in the high "
                             "nibble.")
      .def_property_readonly("quantized_scalers", &QuantizedScalers,
                             "(n_blocks) as stored: float32, float16, a bfloat16 Tensor, uint8 "
                             "(bitsandbytes) or int8 (torchao).")
      .def_property_readonly("quantization_factor", &QuantizationFactor,
                             "float32, one per scaler_block_size scales: bitsandbytes' nested "
                             "absmax or torchao's factor. None without double quantization.")
      .def_property_readonly(
          "scaler_mean", [](const NF4Tensor& t) { return t.matrix.view().nested.offset; },
          "The mean that was subtracted from the scales; 0 without double quantization.")
      .def_property_readonly("scalers", &Scalers, "float32 (n_blocks): the decoded scales, a copy.")
      .def_property_readonly("zero_point", &ZeroPoint,
                             "float32 (n_blocks), added after decoding; None without.")
      .def_property_readonly("nf4", &Codebook, "float32 (16): the value of each code.");
}

void BindSizes(Class& tensor) {
  tensor
      // The bytes that the format stores, without the padding between pieces of storage.
      .def_property_readonly(
          "size_bytes", [](const NF4Tensor& t) { return t.matrix.bytes(); },
          "Bytes of codes, scales, nested scales, mean and zero points.")
      .def_property_readonly(
          "bits_per_weight", [](const NF4Tensor& t) { return t.matrix.bits_per_weight(); },
          "8 * size_bytes / size.")
      .def_property_readonly(
          "compression_ratio", [](const NF4Tensor& t) { return t.matrix.compression_ratio(); },
          "Bytes as float32 / size_bytes.");
}

void BindDecoding(Class& tensor) {
  tensor
      .def(
          "dequantize", &DequantizeTensor, "dtype"_a = "float32", "out"_a = py::none(),
          py::kw_only(), "context"_a = py::none(),
          "code * scale (+ zero point), rounded once to dtype (float32, bfloat16, float16), in the "
          "shape before quantization; into `out` of that shape when given. bfloat16 comes as a "
          "Tensor. Raises Error: another dtype or shape, read-only memory.")
      .def("dequantize", &DequantizeCodes, "nf4"_a,
           "torchao's NF4Tensor.dequantize(value, nf4), called on the class: nf4[value], the "
           "table's value of each code (integers of any shape), in the dtype of the table.")
      .def("get_original_weight", &DequantizeTensor, "dtype"_a = "float32", "out"_a = py::none(),
           py::kw_only(), "context"_a = py::none(), "The same as dequantize.")
      .def(
          "__array__",
          [](const NF4Tensor& t, const py::object& dtype, const py::object& copy) {
            const auto decode = [&] {
              return DequantizeTensor(t, py::str("float32"), py::none(), nullptr);
            };
            return NumpyCopy(decode, dtype, copy);
          },
          "dtype"_a = py::none(), "copy"_a = py::none(),
          "The decoded values as float32, for numpy.asarray.")
      .def("__repr__", &Repr);
}

}  // namespace

py::object Field(const NF4Tensor& t, const void* data, DType dtype, std::int64_t count) {
  return ToPython(const_cast<void*>(data), dtype, {count}, OwnerOf(t));
}

py::object PackedCodes(const NF4Tensor& t) {
  const compat::View& q = t.matrix.view();
  return Field(t, q.packed, DType::kU8, PackedBytes(q.size()));
}

py::object DequantizeTensor(const NF4Tensor& t, const py::object& dtype, const py::object& out,
                            const ContextPtr& context) {
  // `out` has a type already, which wins over the default of dtype.
  const DType type = out.is_none() ? ParseDType(dtype) : Array("out", out, kResultTypes).dtype();
  const NewArray to = OutputArray(out, type, t.shape);
  ContextOr(context)->Run([&](Context& c) {
    // For every shape, one row of all values is the same memory.
    MatrixView view = to.view;
    // An `out` with strided rows keeps its shape, which must then match the matrix.
    if (view.stride == view.cols) {
      view.rows = t.matrix.rows();
      view.cols = view.stride = t.matrix.cols();
    }
    compat::Dequantize(c, t.matrix.view(), view);
  });
  return to.object;
}

void BindNf4Tensor(py::module_& module) {
  Class tensor(module, "NF4Tensor",
               "A 4-bit matrix. Immutable in size; its arrays are views, not copies.");
  // Bound in parts, so that each function is short; help() keeps this order.
  BindMaking(tensor);
  BindShape(tensor);
  BindParts(tensor);
  BindSizes(tensor);
  BindDecoding(tensor);
}

}  // namespace qlora::python
