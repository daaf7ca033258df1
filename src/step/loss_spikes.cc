#include "step/loss_spikes.h"

#include <algorithm>
#include <cmath>

namespace qlora {

bool LossSpikes::Add(double loss) {
  constexpr double kWeight = 0.05;       // weight of the newest loss
  constexpr std::int64_t kWarmup = 20;   // steps before the scatter is known
  constexpr double kDeviations = 6;      // 4.8 sigma of a normal distribution
  constexpr double kLeastExcess = 0.05;  // share of the mean, for losses that hardly scatter
  // Judged by the losses before it: a spike may not widen the scatter that it is compared with.
  const double excess = loss - mean;
  const bool spike = count < kWarmup
                         ? !newest.empty() && loss > 2 * *std::ranges::max_element(newest) + 0.5
                         : excess > std::max(kDeviations * deviation, kLeastExcess * mean);
  if (count == 0) {
    mean = loss;
  } else {
    // A plain mean over the first 20 losses, then an exponential one:
    //
    //   w = max(0.05, 1 / n)
    //   mean += w (loss - mean)
    //   deviation += w (|loss - mean| - deviation)
    const double weight = std::max(kWeight, 1.0 / static_cast<double>(count + 1));
    mean += weight * excess;
    deviation += weight * (std::abs(excess) - deviation);
  }
  ++count;
  if (std::ssize(newest) == kNewest) newest.erase(newest.begin());
  newest.push_back(loss);
  return spike;
}

MedianScatter MedianOf(std::vector<double> values) {
  if (values.empty()) return {};
  const auto median = [&values] {
    std::ranges::sort(values);
    const std::size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  };
  MedianScatter scatter{.median = median()};
  for (double& value : values) value = std::abs(value - scatter.median);
  scatter.deviation = median();
  return scatter;
}

}  // namespace qlora
