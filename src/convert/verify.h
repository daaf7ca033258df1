// Checks that an exported file computes the same as the trained model. The file is read as any
// model is, without a look at the source: what its keys do not say, or say otherwise, is found.
#ifndef QLORA_CONVERT_VERIFY_H_
#define QLORA_CONVERT_VERIFY_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "io/tensor_type.h"
#include "pass/decoder.h"
#include "qlora/export.h"

namespace qlora {

// The greatest differences that are expected of matrices rounded to a type: at least seven times
// those of the models and adapters of examples/ and tests/golden for 8 bits and more, and at least
// 1.7 times for fewer.
struct VerifyLimits {
  double mean_difference = 0;  // VerifyReport::mean_logprob_difference
  double mean_kl = 0;          // VerifyReport::mean_kl_divergence
};
VerifyLimits LimitsOfType(const TensorType& outtype);

// One model in one of two forms, in the memory of its backend, which runs it in float32.
struct ModelForm {
  Backend& backend;
  const DecoderConfig& config;
  const DecoderWeights& weights;
  LoraAdapter* adapter = nullptr;  // null: merged, or none
};

// A text of everyday English with numbers, code and letters of other scripts.
std::string_view BuiltInText();

// Compares two forms of a model with one vocabulary on fixed random tokens and on the tokens of a
// text, of which the first few thousand count. tick: called from time to time; may throw.
VerifyReport Compare(const ModelForm& source, const ModelForm& written,
                     std::span<const std::int32_t> text, const std::function<void()>& tick);

}  // namespace qlora

#endif  // QLORA_CONVERT_VERIFY_H_
