// Loss spikes: steps whose loss is far above the losses of the steps before.
#ifndef QLORA_STEP_LOSS_SPIKES_H_
#define QLORA_STEP_LOSS_SPIKES_H_

#include <cstdint>

namespace qlora {

// The recent losses of a run, as a mean and a scatter. Part of a checkpoint, so that a resumed run
// finds the same spikes.
struct LossSpikes {
  double mean = 0;       // exponential mean of the loss over about 20 steps
  double deviation = 0;  // the same mean of |loss - mean|
  std::int64_t count = 0;

  // Adds one finite loss. Returns true for a spike: a loss that exceeds the mean by more than the
  // recent losses scatter.
  bool Add(double loss);
};

}  // namespace qlora

#endif  // QLORA_STEP_LOSS_SPIKES_H_
