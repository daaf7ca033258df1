// Tells a run whose loss rises from a run that learns.
#ifndef QLORA_STEP_LOSS_RISE_H_
#define QLORA_STEP_LOSS_RISE_H_

#include <cstdint>

#include "step/loss_spikes.h"

namespace qlora {

// The loss at the start of a run: the mean over its first steps. Part of a checkpoint.
struct LossStart {
  double mean = 0;
  std::int64_t count = 0;

  // Adds the finite loss of a step. All but the first `steps` losses are ignored.
  void Add(double loss, std::int64_t steps);
};

// The number of steps that are the start of a run: the warm-up, in which the learning rate
// is still low, but at least 1 and at most 20. The first loss is the loss of the base.
std::int64_t StartSteps(std::int64_t warmup_steps);

// True when the median of the last 20 losses is far above the start: by more than 0.5, by more than
// a fifth of the start, and by more than 2.5 times the median deviation of these losses. A run of
// fewer than 10 steps is not judged.
bool HasRisen(const LossStart& start, const LossSpikes& recent);

}  // namespace qlora

#endif  // QLORA_STEP_LOSS_RISE_H_
