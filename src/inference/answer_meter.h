// Log-probabilities of whole answers, measured over lists of samples.
#ifndef QLORA_INFERENCE_ANSWER_METER_H_
#define QLORA_INFERENCE_ANSWER_METER_H_

#include <optional>
#include <span>
#include <vector>

#include "data/mismatched_rows.h"
#include "inference/dataset_evaluation.h"

namespace qlora {

// What measures: ranks, model and memory, as EvaluateDataset takes them.
struct AnswerMeter {
  Communicator& communicator;
  const RankPlace& place;
  const Decoder& decoder;
  const LoraAdapter* adapter;  // null: the base alone
  Arena& memory;
  EvalProgress progress = {};

  // Of each sample; nothing when progress has returned false on a rank. ld_alpha: as
  // AnswerLogprobs.
  std::optional<std::vector<AnswerLogp>> Measure(const SampleList& samples, double ld_alpha) const;
};

// Rows and data set must outlive the list.
SampleList ListOf(const Dataset& dataset, std::span<const MismatchedRow> rows,
                  std::int64_t max_length);

}  // namespace qlora

#endif  // QLORA_INFERENCE_ANSWER_METER_H_
