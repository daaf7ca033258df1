// An objective measured over a data set, or over other samples.
#ifndef QLORA_INFERENCE_DATASET_LOSS_H_
#define QLORA_INFERENCE_DATASET_LOSS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "data/dataset.h"
#include "dist/rank_place.h"
#include "objective/objective.h"
#include "pass/decoder.h"
#include "qlora/communicator.h"

namespace qlora {

// The rows of one pass: many, in whole samples. largest: tokens of the largest sample.
std::int64_t EvalRows(std::int64_t largest);

// Receives the number of samples that are done, between passes, and the number of all samples.
// Returns false to stop.
using EvalProgress = std::function<bool(std::int64_t done, std::int64_t total)>;

// The samples of an evaluation, by their numbers.
struct EvalSamples {
  std::int64_t size = 0;
  std::int64_t largest = 0;  // tokens of the largest
  std::function<std::int64_t(std::int64_t i)> length;
  std::function<std::int64_t(std::int64_t i)> supervised;
  std::function<Sample(std::int64_t i)> get;
};

struct DatasetSums {
  std::vector<double> sums;  // as Objective::Run, of all passes
  WindowTotals totals;
  double seconds = 0;
  // per_token: what the objective says of each supervised row (ObjectivePass), in the order of the
  // samples, and the token that each row is about.
  std::vector<double> logprobs;
  std::vector<std::int32_t> token_ids;
};

// memory: as ReserveEvaluation makes it for EvalRows(largest) rows. Samples see nothing of each
// other. Replicas share the passes, and all ranks get the result. Returns nothing when progress has
// returned false on a rank.
std::optional<DatasetSums> EvaluateSamples(Communicator& communicator, const RankPlace& place,
                                           const Decoder& decoder, const LoraAdapter* adapter,
                                           const Objective& objective, const EvalSamples& samples,
                                           bool per_token, Arena& memory,
                                           const EvalProgress& progress = {});
// The same, of all samples of a data set.
std::optional<DatasetSums> EvaluateDataset(Communicator& communicator, const RankPlace& place,
                                           const Decoder& decoder, const LoraAdapter* adapter,
                                           const Objective& objective, const Dataset& dataset,
                                           bool per_token, Arena& memory,
                                           const EvalProgress& progress = {});

}  // namespace qlora

#endif  // QLORA_INFERENCE_DATASET_LOSS_H_
