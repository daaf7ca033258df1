// How often a run saves and evaluates: every so many steps, by a share of the run, or so many times
// in an epoch.
#ifndef QLORA_STEP_INTERVAL_H_
#define QLORA_STEP_INTERVAL_H_

#include <cstdint>

#include "data/batch_stream.h"
#include "qlora/train_options.h"

namespace qlora {

struct Interval {
  std::int64_t steps = 0;      // between two of them; 0: not by steps
  std::int64_t per_epoch = 0;  // the last of them at the end of the epoch; 0: not by epochs
};

// save_steps, save_ratio or saves_per_epoch; a share is rounded up to whole steps, as transformers
// does. Nothing given: never.
Interval SaveInterval(const TrainOptions& options, std::int64_t total_steps);
// The same of eval_steps, eval_ratio and evals_per_epoch. Nothing given: once in an epoch.
Interval EvalInterval(const TrainOptions& options, std::int64_t total_steps);

// The place of a step that is done.
struct StepPlace {
  std::int64_t step = 0;           // of the run, from 1
  std::int64_t step_of_epoch = 0;  // from 1; 0: the step has finished an epoch
  std::int64_t steps_of_epoch = 0;
};

// next: the cursor of `stream` behind the step.
StepPlace PlaceOf(std::int64_t step, const BatchStream& stream, const DataCursor& next,
                  std::int64_t gradient_accumulation_steps);

bool IsDue(const Interval& every, const StepPlace& place);

// At most this many times in a run.
std::int64_t TimesIn(const Interval& every, std::int64_t total_steps, std::int64_t steps_per_epoch);

}  // namespace qlora

#endif  // QLORA_STEP_INTERVAL_H_
