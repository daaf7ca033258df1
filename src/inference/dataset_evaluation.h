// An objective measured over a data set.
#ifndef QLORA_INFERENCE_DATASET_EVALUATION_H_
#define QLORA_INFERENCE_DATASET_EVALUATION_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "data/dataset.h"
#include "dist/rank_place.h"
#include "objective/objective.h"
#include "pass/decoder.h"
#include "pass/eval_memory.h"
#include "preference/reference_table.h"
#include "qlora/communicator.h"

namespace qlora {

// Receives the number of samples that are done, between passes, and the number of all samples.
// Returns false to stop.
using EvalProgress = std::function<bool(std::int64_t done, std::int64_t total)>;

// What measures: ranks, model and memory.
struct MeasuredModel {
  Communicator& communicator;
  const RankPlace& place;
  const Decoder& decoder;
  const LoraAdapter* adapter;  // null: the base alone
  Arena& memory;
  EvalProgress progress = {};
};

struct DatasetSums {
  std::vector<double> sums;  // as Objective::Run, of all passes
  WindowTotals totals;
  double seconds = 0;
  // per_token: what the objective says of each supervised row (ObjectivePass), in the order of the
  // samples, and the token that each row is about.
  std::vector<double> logprobs;
  std::vector<std::int32_t> token_ids;

  // Makes these the sums of another part of the same data as well, of the same kl.
  void Add(const DatasetSums& part);
};

// The samples [begin, end) of a pass.
struct PassSamples {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
// Whole samples are collected until the next one would exceed `rows`. Each pass has about the same
// size, whatever the lengths are, and the samples of a pass are separate sequences: grouping does
// not change their losses. length: tokens of sample i of `size`.
std::vector<PassSamples> GroupSamples(std::int64_t size, std::int64_t rows,
                                      const std::function<std::int64_t(std::int64_t)>& length);

// Samples that passes are made of. Totals need the counts before anything is read.
struct SampleList {
  std::int64_t size = 0;
  std::int64_t largest = 0;  // tokens of the largest sample
  std::function<std::int64_t(std::int64_t)> length;
  std::function<std::int64_t(std::int64_t)> supervised;
  std::function<Sample(std::int64_t)> get;
  std::function<std::int64_t(std::int64_t)> chosen = {};  // CountOfFirst, of preferences
  // The reference of each sample, where the objective needs it; kl: as WindowTotals.
  std::function<AnswerLogp(std::int64_t)> reference = {};
  double kl = 0;
};
// The data set must outlive the list.
SampleList ListOf(const Dataset& dataset);

// The memory is as ReserveEvaluation makes it for EvalRows rows. Samples see nothing of each other.
// Replicas share the passes, and all ranks get the result. Returns nothing when progress has
// returned false on a rank.
std::optional<DatasetSums> EvaluateDataset(const MeasuredModel& model, const Objective& objective,
                                           const SampleList& list, bool per_token);

}  // namespace qlora

#endif  // QLORA_INFERENCE_DATASET_EVALUATION_H_
