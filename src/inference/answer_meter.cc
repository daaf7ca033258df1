#include "inference/answer_meter.h"

#include <algorithm>

#include "objective/answer_logprobs.h"
#include "objective/supervised.h"

namespace qlora {

std::optional<std::vector<AnswerLogp>> AnswerMeter::Measure(const SampleList& samples,
                                                            double ld_alpha) const {
  const std::optional<DatasetSums> measured =
      EvaluateDataset(communicator, place, decoder, adapter, Supervised(), samples,
                      /*per_token=*/true, memory, progress);
  if (!measured) return {};
  std::vector<AnswerLogp> answers;
  std::span<const double> rest = measured->logprobs;
  for (std::int64_t i = 0; i < samples.size; ++i) {
    const Sample sample = samples.get(i);
    const Batch batch = MakeBatch({&sample, 1});
    const std::vector<double> logp =
        AnswerLogprobs(batch, rest.first(batch.supervised()), ld_alpha);
    rest = rest.subspan(batch.supervised());
    answers.push_back(logp.size() == 1 ? AnswerLogp{logp[0], 0}
                                       : AnswerLogp{logp[logp.size() - 2], logp.back()});
  }
  return answers;
}

SampleList ListOf(const Dataset& dataset, std::span<const MismatchedRow> rows,
                  std::int64_t max_length) {
  const auto whole = [&dataset, rows](std::int64_t i) {
    const auto [prompt, answer] = rows[i];
    return std::int64_t{dataset.first(prompt)} + dataset.length(answer) - dataset.first(answer);
  };
  const auto length = [whole, max_length](std::int64_t i) {
    return std::min(whole(i), max_length);
  };
  const auto get = [&dataset, rows, max_length](std::int64_t i) {
    return ReadMismatched(dataset, rows[i], max_length);
  };
  const auto supervised = [&dataset, rows, whole, get, max_length](std::int64_t i) {
    return whole(i) <= max_length ? std::int64_t{dataset.supervised(rows[i].answer)}
                                  : CountSupervised(get(i));
  };
  return {.size = std::ssize(rows),
          .largest = LongestMismatched(dataset, max_length),
          .length = length,
          .supervised = supervised,
          .get = get,
          .chosen = supervised};
}

}  // namespace qlora
