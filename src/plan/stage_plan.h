// Ranks in the plan of a run: the stages of a pipeline, and what ranks send.
#ifndef QLORA_PLAN_STAGE_PLAN_H_
#define QLORA_PLAN_STAGE_PLAN_H_

#include <vector>

#include "adapter/lora.h"
#include "config/config.h"
#include "dist/rank_place.h"
#include "qlora/train_options.h"
#include "qlora/train_plan.h"

namespace qlora {

// The place of rank `rank` of `ranks` in a run with these options, as WithRanks returned them.
RankPlace RankPlaceOf(const TrainOptions& options, int rank, int ranks);

// The layers of each stage, of about the same number of multiplications for a token. Errors:
// InvalidInput naming the option, for more stages than layers, and for models and recipes that
// stages do not train.
std::vector<IndexRange> PlanStages(const DecoderConfig& config, const TrainOptions& options);

// The parts of the adapter's values that each stage computes. Its parameters need no memory.
std::vector<std::vector<IndexRange>> PartsOfStages(const LoraAdapter& adapter,
                                                   const std::vector<IndexRange>& stages);

// rows: of the largest micro-batch. wide: the type of the residual stream.
RankPlan PlanRanks(const RankPlace& place, const std::vector<IndexRange>& stages,
                   const LoraAdapter& adapter, const DecoderConfig& config, std::int64_t rows,
                   DType wide);

// The share of a step in which the ranks of a pipeline wait for one another, in the mean of the
// stages, when all stages take the same time and a backward pass takes twice that of a forward
// pass. micro_batches: of a replica in a step.
double IdleShare(int stages, std::int64_t micro_batches);

}  // namespace qlora

#endif  // QLORA_PLAN_STAGE_PLAN_H_
