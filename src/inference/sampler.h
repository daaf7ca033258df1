// From logits to the next token.
#ifndef QLORA_INFERENCE_SAMPLER_H_
#define QLORA_INFERENCE_SAMPLER_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/random.h"
#include "qlora/model.h"

namespace qlora {

// The message where a logit is NaN.
inline constexpr const char* kDamagedLogits =
    "the model's logits hold a NaN: base or adapter is damaged, or of another model";

// Makes each of these tokens less likely, once, however often it is among them. A positive logit is
// divided by the penalty, a negative one multiplied.
void Penalize(std::span<const std::int32_t> tokens, float penalty, std::span<float> logits);

// Repetition penalty, then the likeliest token, or a draw after temperature, top-k, top-p and min-p
// (the order of Hugging Face's logits processors and warpers).
// Number n of a seed's draws does not depend on anything drawn before.
class Sampler {
 public:
  // Errors: InvalidInput for an option out of range.
  explicit Sampler(const GenerateOptions& options);

  // logits (V); context: the tokens so far; draw: 0 for the first new token, 1 for the next ...
  // Errors: Runtime when a logit is NaN, and when all are -infinity.
  std::int32_t Next(std::span<const float> logits, std::span<const std::int32_t> context,
                    std::int64_t draw);

 private:
  using Candidate = std::pair<float, std::int32_t>;  // a token with its logit

  static bool IsLessLikely(const Candidate& a, const Candidate& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;
  }
  std::int32_t Draw(std::int64_t draw);
  const Candidate& Likeliest(std::int64_t i);
  void Gather(bool far);

  bool greedy_;
  double temperature_;
  std::int64_t top_k_;
  double top_p_;
  double min_p_;
  double repetition_penalty_;
  RandomKey key_;
  std::vector<float> scores_;
  float least_ = 0;                // a token with a smaller logit is far from the likeliest one
  std::vector<Candidate> heap_;    // those of which Likeliest has not been asked
  std::vector<Candidate> ranked_;  // what the heap gave, likeliest first
};

}  // namespace qlora

#endif  // QLORA_INFERENCE_SAMPLER_H_
