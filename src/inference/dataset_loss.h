// Loss of a decoder over a data set.
#ifndef QLORA_INFERENCE_DATASET_LOSS_H_
#define QLORA_INFERENCE_DATASET_LOSS_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "data/dataset.h"
#include "dist/rank_place.h"
#include "pass/decoder.h"
#include "qlora/communicator.h"
#include "qlora/model.h"

namespace qlora {

// The rows of one pass: many, in whole samples. longest: in tokens.
std::int64_t EvalRows(std::int64_t longest);

// Receives the number of samples that are done, between passes, and the number of all samples.
// Returns false to stop.
using EvalProgress = std::function<bool(std::int64_t done, std::int64_t total)>;

// memory: as ReserveEvaluation makes it for EvalRows rows. Samples see nothing of each other.
// Replicas share the passes, and all ranks get the result. Returns nothing when progress has
// returned false on a rank.
std::optional<EvalResult> EvaluateDataset(Communicator& communicator, const RankPlace& place,
                                          const Decoder& decoder, const LoraAdapter* adapter,
                                          const Dataset& dataset, bool per_token, Arena& memory,
                                          const EvalProgress& progress = {});

}  // namespace qlora

#endif  // QLORA_INFERENCE_DATASET_LOSS_H_
