// Loss spikes: steps whose loss is far above the losses of the steps before.
#ifndef QLORA_STEP_LOSS_SPIKES_H_
#define QLORA_STEP_LOSS_SPIKES_H_

#include <cstdint>
#include <vector>

namespace qlora {

// The recent losses of a run, as a mean and a scatter. Part of a checkpoint, so that a resumed run
// finds the same spikes.
struct LossSpikes {
  double mean = 0;       // exponential mean of the loss over about 20 steps
  double deviation = 0;  // the same mean of |loss - mean|
  std::int64_t count = 0;
  std::vector<double> newest = {};  // the last kNewest losses, in the order of their steps

  static constexpr std::int64_t kNewest = 20;

  // Adds one finite loss. Returns true for a spike: a loss that exceeds the mean by more than the
  // recent losses scatter; in the first 20 steps one above twice the largest before it, plus 0.5.
  bool Add(double loss);
};

// The median of the values, and the median of their distances from it; 0 without values. A few
// values, however large, do not move them far.
struct MedianScatter {
  double median = 0;
  double deviation = 0;
};
MedianScatter MedianOf(std::vector<double> values);

}  // namespace qlora

#endif  // QLORA_STEP_LOSS_SPIKES_H_
