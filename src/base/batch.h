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

// A row whose next token is one of some labels: an answer with probabilities.
struct Choice {
  std::int64_t row = 0;              // in its sample, or in its batch; it predicts no other token
  std::int32_t kind = 0;             // of the question, for whoever made it
  std::vector<std::int32_t> labels;  // (n) tokens, all different
  std::vector<double> targets;       // (n) probabilities of the answer, their sum is 1
};

// One example of T tokens: a sequence, or sequences that share their first tokens. labels[t] is
// ids[t] where the token is trained on, otherwise kIgnoreLabel; labels are not shifted.
struct Sample {
  std::vector<std::int32_t> ids;     // (T)
  std::vector<std::int32_t> labels;  // (T)
  // The first token of each branch, ascending; empty: one sequence. Tokens before the first branch,
  // if any, are the prefix of all branches, which see nothing of one another:
  //
  //   ids        p p p | a a | b b b      branches   3 5
  //   positions  0 1 2 | 3 4 | 3 4 5
  //
  // The first token of a branch is predicted by nothing.
  std::vector<std::int64_t> branches = {};
  std::vector<Choice> choices = {};  // ascending rows
  bool desirable = true;             // the label of an answer, where answers have labels
  // Of a pair whose chosen answer trains its prompt: CountOfFirst of the tokens of that prompt.
  std::int64_t text_targets = 0;
};

// Tokens of a sample that some earlier token must predict: labels other than kIgnoreLabel, without
// the first token of a sequence, which nothing predicts; and choices.
std::int64_t CountSupervised(const Sample& sample);
// CountSupervised of the first sequence, which is the chosen answer of a pair; 0 of an undesirable
// answer.
std::int64_t CountOfFirst(const Sample& sample);
// Tokens of the longest sequence, with its prefix.
std::int64_t LongestSequence(const Sample& sample);
// Tokens of all sequences, each with its prefix, and of the prefix.
std::int64_t UnfoldedRows(const Sample& sample);

// N rows of S sequences. Attention never crosses from one sequence into another, and positions
// restart, so that a sequence gives the same loss and gradients alone or packed with others. A
// sequence may go on from an earlier one, its prefix, which others go on from too.
struct Batch {
  std::vector<std::int32_t> ids;  // (N)
  // (N) token that row n must predict, or kIgnoreLabel; the likeliest label of a choice.
  std::vector<std::int32_t> targets;
  std::vector<std::int32_t> positions;          // (N) 0, 1, ... within each sequence and its prefix
  std::vector<std::int64_t> sequence_begin;     // (S + 1) first row of each sequence, then N
  std::vector<std::int64_t> prefix = {};        // (S) the sequence that it goes on from, or -1;
                                                // empty: none
  std::vector<std::int64_t> sample_begin = {};  // (E + 1) first sequence of each sample, then S
  std::vector<Choice> choices = {};             // ascending rows
  std::vector<std::uint8_t> desirable = {};     // (E) labels of the samples: 1 or 0
  std::vector<std::int64_t> text_targets = {};  // (E) as Sample
  std::vector<double> reference = {};           // (S) log-probabilities under the reference of the
                                                // targets of each sequence; empty: none

  std::int64_t rows() const { return static_cast<std::int64_t>(ids.size()); }
  std::int64_t sequences() const { return static_cast<std::int64_t>(sequence_begin.size()) - 1; }
  std::int64_t supervised() const;  // targets other than kIgnoreLabel
  std::int64_t prefix_rows(std::int64_t s) const;
  // Rows of all sequences when each is written with its prefix; 0 where none has one.
  std::int64_t unfolded_rows() const;
};

// Lays `samples` one after the other. The last row of each sequence has no target, unless it is a
// choice. Every sample holds at least one token and as many labels as ids; no samples make a batch
// of no rows.
Batch MakeBatch(std::span<const Sample* const> samples);
Batch MakeBatch(std::span<const Sample> samples);

}  // namespace qlora

#endif  // QLORA_BASE_BATCH_H_
