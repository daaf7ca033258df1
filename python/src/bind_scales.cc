// Double quantization of scales on arrays, and the bytes of the forms.
#include "array.h"
#include "nf4_tensor.h"

namespace qlora::python {
namespace {

using pybind11::literals::operator""_a;

// torchao computes in the dtype of the scales, which its factors have too.
DType Arithmetic(compat::ScaleForm form, DType given) {
  // bitsandbytes computes in float32 for scales of every type.
  const bool half = given == DType::kF16 || given == DType::kBF16;
  return form == compat::ScaleForm::kDoubleTorchao && half ? given : DType::kF32;
}

py::tuple DoubleQuantize(const py::object& scalers, std::int64_t scaler_block_size,
                         const std::string& scheme, const std::string& rule) {
  const Floats values("scalers", scalers);
  // "torchao" or "bnb": the names of forms without their prefix.
  const compat::ScaleForm form = ParseScaleForm("double_" + scheme);
  const compat::EncodeRule how = ParseRule(rule);
  const DType arithmetic = Arithmetic(form, values.dtype());
  const auto result = WithoutLock([&] {
    // Shared with the array of codes, which views it.
    return std::make_shared<DoubleQuantizedScales>(
        compat::DoubleQuantizeScales(values.values(), form, scaler_block_size, how, arithmetic));
  });
  // Exact: torchao's factors were rounded to this type as they were computed.
  return py::make_tuple(
      ToPython(result->codes.data(), ScaleDType(form), {std::ssize(result->codes)}, result),
      RoundedCopy(result->nested_scales, arithmetic), result->offset);
}

py::object DequantizeScalers(const py::object& codes, const py::object& factors, float mean,
                             std::int64_t scaler_block_size, const std::string& scheme) {
  const compat::ScaleForm form = ParseScaleForm("double_" + scheme);
  const Array code_values("codes", codes, {ScaleDType(form)});
  const Floats factor_values("factors", factors);
  // int8 codes are read as bytes: the scheme gives their meaning.
  const std::span bytes(static_cast<const std::uint8_t*>(code_values.FlatData(ScaleDType(form))),
                        code_values.size());
  const NewArray out = MakeArray(DType::kF32, {code_values.size()});
  WithoutLock([&] {
    compat::DequantizeScales(bytes, factor_values.values(), mean, form, scaler_block_size,
                             {out.view.Row<float>(0), bytes.size()},
                             Arithmetic(form, factor_values.dtype()));
  });
  return out.object;
}

}  // namespace

void BindScales(py::module_& module) {
  module.def("double_quantize_scalers", &DoubleQuantize, "scalers"_a, "scaler_block_size"_a = 256,
             "scheme"_a = "torchao", "rule"_a = "cpu",
             "(codes (n), factors (ceil(n / scaler_block_size)), mean) of scales (n) of any float "
             "dtype; float64 is rounded to float32. scheme \"torchao\": int8 codes, round((s - "
             "mean) * factor), factor = 128 / max|s - mean|, each step and the factors in the "
             "dtype of 16-bit scales, else in float32; \"bnb\": bitsandbytes' uint8 codes of the "
             "signed dynamic map, factors = max|s - mean|. Raises Error: scales not finite.");
  module.def(
      "dequantize_scalers", &DequantizeScalers, "codes"_a, "factors"_a, "mean"_a,
      "scaler_block_size"_a = 256, "scheme"_a = "torchao",
      "float32 (n) scales back from what double_quantize_scalers returned, by the arithmetic of "
      "the dtype of the factors. Raises Error: other dtypes, sizes that do not agree.");
  module.def(
      "bits_per_weight",
      [](std::int64_t block_size, const std::string& scale_type, std::int64_t scaler_block_size) {
        return compat::BitsPerWeight(QuantizeArguments{.block_size = block_size,
                                                       .scale_type = scale_type,
                                                       .scaler_block_size = scaler_block_size}
                                         .ToOptions());
      },
      "block_size"_a = 64, "scale_type"_a = "double_bnb", "scaler_block_size"_a = 256,
      "Bits of one weight in whole blocks with its share of the scales (a float). Raises Error: "
      "a scale_type that is none.");
}

}  // namespace qlora::python
