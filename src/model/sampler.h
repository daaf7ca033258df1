// From logits to the next token.
#ifndef QLORA_MODEL_SAMPLER_H_
#define QLORA_MODEL_SAMPLER_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/random.h"
#include "qlora/model.h"

namespace qlora {

// Greedy, or temperature, then top-k, then top-p (the order of Hugging Face's logits warpers).
// Number n of a seed's draws does not depend on anything drawn before.
class Sampler {
 public:
  // Errors: InvalidInput for a temperature, top_k or top_p out of range.
  explicit Sampler(const GenerateOptions& options);

  // logits (V); draw: 0 for the first new token, 1 for the next ...
  std::int32_t Next(std::span<const float> logits, std::int64_t draw);

 private:
  bool greedy_;
  double temperature_;
  std::int64_t top_k_;
  double top_p_;
  RandomKey key_;
  std::vector<std::pair<float, std::int32_t>> candidates_;
};

}  // namespace qlora

#endif  // QLORA_MODEL_SAMPLER_H_
