// How many rows of prompts a step may read, so that texts that are written meanwhile do not halt.
#ifndef QLORA_SERVE_ENGINE_PROMPT_PACE_H_
#define QLORA_SERVE_ENGINE_PROMPT_PACE_H_

#include <algorithm>
#include <cstdint>

namespace qlora {

class PromptPace {
 public:
  explicit PromptPace(std::int64_t step_ms) : step_seconds_(static_cast<double>(step_ms) / 1000) {}

  // Of the next step. Where no text is written, new requests alone wait for its end: it may take
  // four times as long, which reads a prompt in fewer parts.
  std::int64_t rows(bool some_are_written) const { return some_are_written ? rows_ : 4 * rows_; }

  // Takes what a step took: rows of prompts, and all of its time.
  void Add(std::int64_t rows, double seconds) {
    // Fewer rows take nearly as long: each pass reads, decodes and codes all weights.
    if (rows < kLeastRows) return;
    const double fit = static_cast<double>(rows) * step_seconds_ / std::max(seconds, 1e-6);
    // Twice at most, since one measurement says little of a machine that others use, too.
    rows_ = std::clamp(static_cast<std::int64_t>(std::min(fit, 1e5)), kLeastRows, 2 * rows_);
  }

 private:
  static constexpr std::int64_t kLeastRows = 32;

  double step_seconds_;
  // Before anything was measured: with 1.1 B parameters, and 75 rows a second, four times as many
  // take less than two seconds, during which nobody sees that a client has gone.
  std::int64_t rows_ = 32;
};

}  // namespace qlora

#endif  // QLORA_SERVE_ENGINE_PROMPT_PACE_H_
