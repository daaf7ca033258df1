#include "step/interval.h"

#include <algorithm>
#include <cmath>

namespace qlora {
namespace {

Interval IntervalOf(std::int64_t steps, std::int64_t per_epoch, double ratio,
                    std::int64_t total_steps) {
  if (ratio > 0) steps = std::llround(std::ceil(ratio * static_cast<double>(total_steps)));
  return {.steps = steps, .per_epoch = per_epoch};
}

// The parts of an epoch that its first `step` steps complete.
std::int64_t PartsDone(std::int64_t per_epoch, std::int64_t step, std::int64_t steps_of_epoch) {
  return per_epoch * step / steps_of_epoch;
}

}  // namespace

Interval SaveInterval(const TrainOptions& options, std::int64_t total_steps) {
  return IntervalOf(options.save_steps, options.saves_per_epoch, options.save_ratio, total_steps);
}

Interval EvalInterval(const TrainOptions& options, std::int64_t total_steps) {
  Interval every =
      IntervalOf(options.eval_steps, options.evals_per_epoch, options.eval_ratio, total_steps);
  if (every.steps == 0 && every.per_epoch == 0) every.per_epoch = 1;
  return every;
}

StepPlace PlaceOf(std::int64_t step, const BatchStream& stream, const DataCursor& next,
                  std::int64_t gradient_accumulation_steps) {
  const auto steps = [&](std::int64_t micro_batches) {
    return (micro_batches + gradient_accumulation_steps - 1) / gradient_accumulation_steps;
  };
  return {.step = step,
          .step_of_epoch = steps(next.position),
          .steps_of_epoch = steps(stream.MicroBatchesIn(next.epoch))};
}

// With 4 in an epoch of 10 steps: after steps 3, 5, 8 and 10.
bool IsDue(const Interval& every, const StepPlace& place) {
  if (every.steps > 0) return place.step % every.steps == 0;
  if (every.per_epoch == 0) return false;
  if (place.step_of_epoch == 0) return true;
  return PartsDone(every.per_epoch, place.step_of_epoch, place.steps_of_epoch) >
         PartsDone(every.per_epoch, place.step_of_epoch - 1, place.steps_of_epoch);
}

std::int64_t TimesIn(const Interval& every, std::int64_t total_steps,
                     std::int64_t steps_per_epoch) {
  if (every.steps > 0) return total_steps / every.steps;
  // More often than once in a step is not possible.
  const std::int64_t in_epoch = std::min(every.per_epoch, steps_per_epoch);
  const std::int64_t epochs = (total_steps + steps_per_epoch - 1) / steps_per_epoch;
  return std::min(total_steps, in_epoch * epochs);
}

}  // namespace qlora
