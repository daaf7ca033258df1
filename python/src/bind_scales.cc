// Double quantization of scales on arrays, and what the forms cost.
#include "array.h"
#include "nf4_tensor.h"

namespace qlora::python {
namespace {

using pybind11::literals::operator""_a;

py::tuple DoubleQuantize(const py::object& scalers, std::int64_t scaler_block_size,
                         const std::string& scheme, const std::string& rule) {
  const Array values("scalers", scalers);
  const std::span<const float> from = values.Flat<float>();
  const compat::ScaleForm form = ParseScaleForm("double_" + scheme);
  const compat::EncodeRule how = ParseRule(rule);
  const auto result = WithoutLock([&] {
    return std::make_shared<DoubleQuantizedScales>(
        compat::DoubleQuantizeScales(from, form, scaler_block_size, how));
  });
  return py::make_tuple(
      ToPython(result->codes.data(), ScaleDType(form), {std::ssize(result->codes)}, result),
      ToPython(result->nested_scales.data(), DType::kF32, {std::ssize(result->nested_scales)},
               result),
      result->offset);
}

py::object DequantizeScalers(const py::object& codes, const py::object& factors, float mean,
                             std::int64_t scaler_block_size, const std::string& scheme) {
  const Array code_values("codes", codes);
  const Array factor_values("factors", factors);
  const compat::ScaleForm form = ParseScaleForm("double_" + scheme);
  const std::span bytes(static_cast<const std::uint8_t*>(code_values.FlatData(ScaleDType(form))),
                        code_values.size());
  const std::span<const float> nested = factor_values.Flat<float>();
  const NewArray out = MakeArray(DType::kF32, {code_values.size()});
  WithoutLock([&] {
    compat::DequantizeScales(bytes, nested, mean, form, scaler_block_size,
                             {out.view.Row<float>(0), bytes.size()});
  });
  return out.object;
}

}  // namespace

void BindScales(py::module_& module) {
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
