// The words by which Python names forms, and the options made of them.
#include "base/check.h"
#include "nf4_tensor.h"

namespace qlora::python {
namespace {

template <typename T>
T Lookup(const char* what, const std::string& name,
         std::initializer_list<std::pair<const char*, T>> known) {
  std::string names;
  for (const auto& [text, value] : known) {
    if (name == text) return value;
    // Collected on the way, for the error that ends the loop.
    names += fmt::format("{}{}", names.empty() ? "" : ", ", text);
  }
  ThrowInvalidInput("{}: expected one of {}, found '{}'", what, names, name);
}

}  // namespace

QuantType ParseQuantType(const std::string& name) {
  return Lookup<QuantType>("quant_type", name,
                           {{"nf4", QuantType::kNf4}, {"fp4", QuantType::kFp4}});
}

compat::ScaleForm ParseScaleForm(const std::string& name) {
  using compat::ScaleForm;
  return Lookup<ScaleForm>("scale_type", name,
                           {{"float32", ScaleForm::kF32},
                            {"float16", ScaleForm::kF16},
                            {"bfloat16", ScaleForm::kBF16},
                            {"double_bnb", ScaleForm::kDoubleBnb},
                            {"double_torchao", ScaleForm::kDoubleTorchao}});
}

compat::EncodeRule ParseRule(const std::string& name) {
  using compat::EncodeRule;
  // cpu and cuda: bitsandbytes' two programs, which differ on midpoints and subnormal numbers.
  return Lookup<EncodeRule>("rule", name,
                            {{"cpu", EncodeRule::kBnbCpu},
                             {"cuda", EncodeRule::kBnbCuda},
                             {"torchao", EncodeRule::kTorchao}});
}

DType ScaleDType(compat::ScaleForm form) {
  // In the order of ScaleForm. bitsandbytes stores indices of a map (uint8), torchao signed codes
  // (int8).
  constexpr DType kOfForm[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kU8, DType::kI8};
  static_assert(std::size(kOfForm) == static_cast<int>(compat::ScaleForm::kDoubleTorchao) + 1);
  return kOfForm[static_cast<int>(form)];
}

compat::Options QuantizeArguments::ToOptions() const {
  return {.type = ParseQuantType(quant_type),
          .block_size = block_size,
          .scale_form = ParseScaleForm(scale_type),
          .scaler_block_size = scaler_block_size,
          .rule = ParseRule(rule),
          .scale_search = scale_search,
          .row_blocks = row_blocks,
          .zero_point = zero_point,
          .name = name};
}

}  // namespace qlora::python
