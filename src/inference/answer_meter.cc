#include "inference/answer_meter.h"

#include <algorithm>

#include "objective/answer_logprobs.h"
#include "objective/supervised.h"

namespace qlora {

std::optional<std::vector<AnswerLogp>> AnswerMeter::Measure(const SampleList& samples,
                                                            double ld_alpha) const {
  const std::optional<DatasetSums> measured =
      EvaluateDataset(*this, Supervised(), samples, /*per_token=*/true);
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

bool AnswerMeter::MeasureInto(ReferenceTable& table, const Dataset& dataset,
                              const VisitedSamples& visited, double ld_alpha,
                              std::int64_t max_length) const {
  if (!visited.samples.empty()) {
    const Dataset part = dataset.Subset(visited.samples);
    const auto answers = Measure(ListOf(part), ld_alpha);
    if (!answers) return false;
    for (std::size_t i = 0; i < answers->size(); ++i) {
      table.Add(dataset.key(visited.samples[i]), (*answers)[i]);
    }
  }
  const std::vector<MismatchedRow>& rows = visited.mismatched;
  if (rows.empty()) return true;
  const auto answers = Measure(ListOf(dataset, rows, max_length), 1);
  if (!answers) return false;
  for (std::size_t i = 0; i < rows.size(); ++i) table.Add(KeyOf(dataset, rows[i]), (*answers)[i]);
  return true;
}

std::optional<DatasetSums> AnswerMeter::Evaluate(const Objective& objective, const Dataset& data,
                                                 const ReferenceTable& reference, double kl,
                                                 bool per_token) const {
  SampleList list = ListOf(data);
  list.kl = kl;
  if (objective.needs_reference()) {
    list.reference = [&](std::int64_t i) { return reference.Of(data.key(i)); };
  }
  return EvaluateDataset(*this, objective, list, per_token);
}

std::optional<double> AnswerMeter::MeasureKl(const Dataset& dataset,
                                             const ReferenceTable& reference,
                                             std::int64_t max_length) const {
  const std::vector<MismatchedRow> rows = VisitedByEvaluation(dataset, true).mismatched;
  const auto answers = Measure(ListOf(dataset, rows, max_length), 1);
  if (!answers) return {};
  double sum = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    sum += (*answers)[i].chosen - reference.Of(KeyOf(dataset, rows[i])).chosen;
  }
  return std::max(0.0, sum / static_cast<double>(rows.size()));
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
