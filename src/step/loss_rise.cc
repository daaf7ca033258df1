#include "step/loss_rise.h"

#include <algorithm>

namespace qlora {

void LossStart::Add(double loss, std::int64_t steps) {
  if (count >= steps) return;
  ++count;
  mean += (loss - mean) / static_cast<double>(count);
}

std::int64_t StartSteps(std::int64_t warmup_steps) {
  return std::clamp<std::int64_t>(warmup_steps, 1, 20);
}

// Losses are in nats. The least rise prevents an alarm over 0.01 and 0.02 on data that the model
// knows by heart. The scatter prevents an alarm for a run whose steps see few tokens. Medians: one
// loss of 20 would raise a mean deviation so far that nothing after it looked like a rise.
bool HasRisen(const LossStart& start, const LossSpikes& recent) {
  constexpr std::int64_t kFewSteps = 10;
  constexpr double kLeastRise = 0.5;
  constexpr double kLeastShare = 0.2;
  constexpr double kDeviations = 2.5;  // 1.7 sigma of a normal distribution
  if (start.count == 0 || std::ssize(recent.newest) < kFewSteps) return false;
  const MedianScatter now = MedianOf(recent.newest);
  const double least =
      std::max({kLeastRise, kLeastShare * start.mean, kDeviations * now.deviation});
  return now.median - start.mean > least;
}

}  // namespace qlora
