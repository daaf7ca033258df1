// How far the model is from its reference, as the answers to other prompts of a window tell.
#ifndef QLORA_STEP_WINDOW_KL_H_
#define QLORA_STEP_WINDOW_KL_H_

#include "dist/rank_place.h"
#include "step/step.h"

namespace qlora {

// WindowTotals::kl, from StepBatch::MicroBatch::mismatched: passes without gradients before the
// first backward pass, whose values are added in the order of micro-batches on every rank.
double WindowKl(const StepModel& model, const RankPlace& place, const StepBatch& batch,
                const LoraAdapter& adapter);

}  // namespace qlora

#endif  // QLORA_STEP_WINDOW_KL_H_
