// Log-probabilities of whole answers, from those of their tokens.
#ifndef QLORA_OBJECTIVE_ANSWER_LOGPROBS_H_
#define QLORA_OBJECTIVE_ANSWER_LOGPROBS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/batch.h"
#include "preference/reference_table.h"

namespace qlora {

// An answer of a sample: the targets of one sequence, as places among all targets of the batch.
struct AnswerTokens {
  std::int64_t sequence = 0;
  std::int64_t text = 0;   // the first target of the sequence: of the prompt, where it is trained
  std::int64_t begin = 0;  // the first target of the answer
  std::int64_t end = 0;

  std::int64_t tokens() const { return end - begin; }
};

// The answers of sample e, one or two: of a pair the chosen one, then the rejected one.
std::vector<AnswerTokens> AnswersOf(const Batch& batch,
                                    std::span<const std::int64_t> targets_before, std::int64_t e);
// (S + 1) the number of targets before each sequence, and of all.
std::vector<std::int64_t> TargetsBefore(const Batch& batch);

// The weight of each token of an answer: 1, and ld_alpha beyond the length of the shorter answer.
double TokenWeight(std::int64_t token, std::int64_t shorter, double ld_alpha);

// (S) the log-probability of the answer of each sequence, 0 of a prefix. logprobs: of all targets.
std::vector<double> AnswerLogprobs(const Batch& batch, std::span<const double> logprobs,
                                   double ld_alpha);

// Sets the reference of the answers of each sample. of: that of sample e of the batch.
void SetReference(const std::function<AnswerLogp(std::int64_t e)>& of, Batch& batch);

}  // namespace qlora

#endif  // QLORA_OBJECTIVE_ANSWER_LOGPROBS_H_
