// Checks of training options that need no file: values that no run can have, and options without
// effect.
#ifndef QLORA_PLAN_CHECK_OPTIONS_H_
#define QLORA_PLAN_CHECK_OPTIONS_H_

#include "qlora/train_options.h"

namespace qlora {

// Errors: InvalidInput naming the option, for values that no run can have and for options without
// effect.
void CheckOptions(const TrainOptions& options);

// The options of a run on this many ranks: gradient_accumulation_steps becomes the micro-batches of
// a step of all ranks, and global_batch_size 0. Errors: InvalidInput naming the option when the
// steps cannot be shared out.
TrainOptions WithRanks(TrainOptions options, int ranks);

// Errors: InvalidInput naming the option, for a number out of its range.
void CheckRanges(const TrainOptions& options);

// Errors: InvalidInput for the first of options.Idle().
void CheckIdle(const TrainOptions& options);

}  // namespace qlora

#endif  // QLORA_PLAN_CHECK_OPTIONS_H_
