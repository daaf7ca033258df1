#include "objective/answer_logprobs.h"

#include <algorithm>

namespace qlora {

std::vector<std::int64_t> TargetsBefore(const Batch& batch) {
  std::vector<std::int64_t> before = {0};
  for (std::int64_t s = 0; s < batch.sequences(); ++s) {
    const auto begin = batch.targets.begin() + batch.sequence_begin[s];
    const auto end = batch.targets.begin() + batch.sequence_begin[s + 1];
    before.push_back(before.back() + (end - begin) - std::count(begin, end, kIgnoreLabel));
  }
  return before;
}

std::vector<AnswerTokens> AnswersOf(const Batch& batch,
                                    std::span<const std::int64_t> targets_before, std::int64_t e) {
  std::vector<AnswerTokens> answers;
  for (std::int64_t s = batch.sample_begin[e]; s < batch.sample_begin[e + 1]; ++s) {
    const std::int64_t begin = targets_before[s];
    if (targets_before[s + 1] > begin) answers.push_back({s, begin, begin, targets_before[s + 1]});
  }
  if (!answers.empty()) answers[0].begin += batch.text_targets[e];
  return answers;
}

double TokenWeight(std::int64_t token, std::int64_t shorter, double ld_alpha) {
  return token < shorter ? 1 : ld_alpha;
}

std::vector<double> AnswerLogprobs(const Batch& batch, std::span<const double> logprobs,
                                   double ld_alpha) {
  std::vector<double> sums(batch.sequences());
  const std::vector<std::int64_t> before = TargetsBefore(batch);
  for (std::int64_t e = 0; e + 1 < std::ssize(batch.sample_begin); ++e) {
    const std::vector<AnswerTokens> answers = AnswersOf(batch, before, e);
    std::int64_t shorter = batch.rows();
    for (const AnswerTokens& answer : answers) shorter = std::min(shorter, answer.tokens());
    for (const AnswerTokens& answer : answers) {
      for (std::int64_t t = 0; t < answer.tokens(); ++t) {
        sums[answer.sequence] += TokenWeight(t, shorter, ld_alpha) * logprobs[answer.begin + t];
      }
    }
  }
  return sums;
}

void SetReference(const std::function<AnswerLogp(std::int64_t e)>& of, Batch& batch) {
  batch.reference.assign(batch.sequences(), 0);
  for (std::int64_t e = 0; e + 1 < std::ssize(batch.sample_begin); ++e) {
    const AnswerLogp sample = of(e);
    const std::int64_t end = batch.sample_begin[e + 1];
    const std::int64_t answers = std::min<std::int64_t>(2, end - batch.sample_begin[e]);
    batch.reference[end - answers] = sample.chosen;
    if (answers == 2) batch.reference[end - 1] = sample.rejected;
  }
}

}  // namespace qlora
