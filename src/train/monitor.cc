#include "train/monitor.h"

#include <algorithm>
#include <cmath>

namespace qlora {

bool LossMonitor::Add(double loss) {
  constexpr double kWeight = 0.05;       // of the newest loss
  constexpr std::int64_t kWarmup = 20;   // steps before anything is called a spike
  constexpr double kDeviations = 6;      // of a normal distribution these are 4.8 sigma
  constexpr double kLeastExcess = 0.05;  // of the mean: flat losses do not scatter at all
  const double excess = loss - mean;
  const bool spike =
      count >= kWarmup && excess > std::max(kDeviations * deviation, kLeastExcess * mean);
  if (count == 0) {
    mean = loss;
  } else {
    const double weight = std::max(kWeight, 1.0 / static_cast<double>(count + 1));
    mean += weight * excess;
    deviation += weight * (std::abs(excess) - deviation);
  }
  ++count;
  return spike;
}

bool BestEval::Add(std::int64_t at_step, double value, bool greater, double threshold) {
  if (!std::isfinite(value)) {
    ++since_best;
    return false;
  }
  const double gain = greater ? value - metric : metric - value;
  if (step >= 0 && !(gain > threshold)) {
    ++since_best;
    return false;
  }
  metric = value;
  step = at_step;
  since_best = 0;
  return true;
}

}  // namespace qlora
