// An objective measured over a data set.
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

struct DatasetSums {
  std::vector<double> sums;  // as Objective::Run, of all passes
  WindowTotals totals;
  double seconds = 0;
  std::vector<double> logprobs;         // per_token: one per supervised token, in file order
  std::vector<std::int32_t> token_ids;  // per_token: the token each of them is about
};

// memory: as ReserveEvaluation makes it for EvalRows rows. Samples see nothing of each other.
// Replicas share the passes, and all ranks get the result. Returns nothing when progress has
// returned false on a rank.
std::optional<DatasetSums> EvaluateDataset(Communicator& communicator, const RankPlace& place,
                                           const Decoder& decoder, const LoraAdapter* adapter,
                                           const Objective& objective, const Dataset& dataset,
                                           bool per_token, Arena& memory,
                                           const EvalProgress& progress = {});

}  // namespace qlora

#endif  // QLORA_INFERENCE_DATASET_LOSS_H_
