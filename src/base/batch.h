// The data as the trainer sees them: token sequences laid one after the other, without padding.
#ifndef QLORA_BASE_BATCH_H_
#define QLORA_BASE_BATCH_H_

#include <cstdint>
#include <span>
#include <vector>

namespace qlora {

// The label of a token that is read but not trained on (the convention of PyTorch and Hugging
// Face).
inline constexpr std::int32_t kIgnoreLabel = -100;

// One sequence of T tokens. labels[t] is ids[t] where the token is trained on, otherwise
// kIgnoreLabel; labels are not shifted.
struct Sample {
  std::vector<std::int32_t> ids;     // (T)
  std::vector<std::int32_t> labels;  // (T)
};

// Tokens of a sample that some earlier token must predict: labels other than kIgnoreLabel, without
// the first token, which nothing predicts.
std::int64_t CountSupervised(const Sample& sample);

// N rows of S sequences. Attention never crosses from one sequence into another, and positions
// restart, so that a sequence gives the same loss and gradients alone or packed with others.
struct Batch {
  std::vector<std::int32_t> ids;             // (N)
  std::vector<std::int32_t> targets;         // (N) token that row n must predict, or kIgnoreLabel
  std::vector<std::int32_t> positions;       // (N) 0, 1, ... within each sequence
  std::vector<std::int64_t> sequence_begin;  // (S + 1) first row of each sequence, then N

  std::int64_t rows() const { return static_cast<std::int64_t>(ids.size()); }
  std::int64_t sequences() const { return static_cast<std::int64_t>(sequence_begin.size()) - 1; }
  std::int64_t supervised() const;  // targets other than kIgnoreLabel
};

// Lays `samples` one after the other. The last row of each sequence has no target. Every sample
// holds at least one token and as many labels as ids; no samples make a batch of no rows.
Batch MakeBatch(std::span<const Sample* const> samples);
Batch MakeBatch(std::span<const Sample> samples);

}  // namespace qlora

#endif  // QLORA_BASE_BATCH_H_
