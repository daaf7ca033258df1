// Tells, at the end of a run, whether its adapter is of use.
#ifndef QLORA_TRAIN_DIVERGENCE_H_
#define QLORA_TRAIN_DIVERGENCE_H_

#include <string>

#include "checkpoint/train_position.h"
#include "train/loaded_run.h"

namespace qlora {

// Describes how a run got worse, with remedies; "" for a run that did not. loaded: with the adapter
// that was saved.
std::string DescribeDivergence(const TrainOptions& options, const TrainPosition& at,
                               LoadedRun& loaded);

}  // namespace qlora

#endif  // QLORA_TRAIN_DIVERGENCE_H_
