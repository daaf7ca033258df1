// How long a run takes on this machine (EstimateSeconds): the arithmetic of its steps over the rate
// of products, which a short probe measures.
#ifndef QLORA_TRAIN_STEP_TIME_H_
#define QLORA_TRAIN_STEP_TIME_H_

#include "qlora/train.h"

namespace qlora {

// FLOPs of the steps that are left of a run, of all ranks, those of its anchor included.
double RemainingFlops(const TrainPlan& plan);

}  // namespace qlora

#endif  // QLORA_TRAIN_STEP_TIME_H_
