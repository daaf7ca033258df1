// Log-probabilities of whole answers, and objectives that are made of them, over lists of samples.
#ifndef QLORA_INFERENCE_ANSWER_METER_H_
#define QLORA_INFERENCE_ANSWER_METER_H_

#include <optional>
#include <span>
#include <vector>

#include "data/mismatched_rows.h"
#include "inference/dataset_evaluation.h"
#include "preference/reference_table.h"

namespace qlora {

// Measures with what EvaluateDataset takes.
struct AnswerMeter : MeasuredModel {
  // Of each sample; nothing when progress has returned false on a rank. ld_alpha: as
  // AnswerLogprobs.
  std::optional<std::vector<AnswerLogp>> Measure(const SampleList& samples, double ld_alpha) const;
  // Adds the log-probabilities of `visited` to a table; false when progress has returned false.
  // max_length: of mismatched rows, here and below.
  bool MeasureInto(ReferenceTable& table, const Dataset& dataset, const VisitedSamples& visited,
                   double ld_alpha, std::int64_t max_length) const;
  // Evaluates an objective on data, of all of which kl is WindowTotals::kl. reference: has the
  // data, where the objective needs it. Nothing when progress has returned false on a rank.
  std::optional<DatasetSums> Evaluate(const Objective& objective, const Dataset& data,
                                      const ReferenceTable& reference, double kl,
                                      bool per_token = false) const;
  // WindowTotals::kl of all of a data set, against a reference that has VisitedByEvaluation.
  std::optional<double> MeasureKl(const Dataset& dataset, const ReferenceTable& reference,
                                  std::int64_t max_length) const;
};

// Rows and data set must outlive the list.
SampleList ListOf(const Dataset& dataset, std::span<const MismatchedRow> rows,
                  std::int64_t max_length);

}  // namespace qlora

#endif  // QLORA_INFERENCE_ANSWER_METER_H_
