// What a run watches in its own losses: spikes, and the best evaluation so far. Both are part of a
// checkpoint, so that a resumed run judges as the uninterrupted one does.
#ifndef QLORA_TRAIN_MONITOR_H_
#define QLORA_TRAIN_MONITOR_H_

#include <cstdint>

namespace qlora {

// A spike is a loss that lies further above the recent mean than the recent losses scatter.
struct LossMonitor {
  double mean = 0;       // exponential, over about 20 steps
  double deviation = 0;  // likewise, of |loss - mean|
  std::int64_t count = 0;

  // Takes in one finite loss; true for a spike.
  bool Add(double loss);
};

// The best evaluation, and how long ago it was.
struct BestEval {
  double metric = 0;
  std::int64_t step = -1;       // -1: no evaluation yet
  std::int64_t since_best = 0;  // evaluations in a row that were no better than `metric`

  // Takes in the metric of an evaluation; true when it is the best. Better means higher when
  // `greater`, and by more than `threshold`; NaN and Inf are never better.
  bool Add(std::int64_t at_step, double value, bool greater, double threshold);
};

}  // namespace qlora

#endif  // QLORA_TRAIN_MONITOR_H_
