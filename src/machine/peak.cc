#include "machine/peak.h"

#include <algorithm>

#include "base/stopwatch.h"

namespace qlora {

double RunPeakLoop(Context& context, const PeakLoop& loop) {
  const int threads = context.threads();
  context.ParallelFor(threads, [&](std::int64_t, int) { loop.run(); });
  return loop.operations * static_cast<double>(loop.instructions * threads);
}

double MeasurePeak(Context& context, DType compute) {
  constexpr double kSeconds = 0.05;
  const PeakLoop& loop = PeakLoopOf(ActiveSimdTarget(), compute);
  double best = 0;
  const Stopwatch all;
  do {
    const Stopwatch watch;
    const double operations = RunPeakLoop(context, loop);
    best = std::max(best, operations / watch.seconds());
  } while (all.seconds() < kSeconds);
  return best;
}

}  // namespace qlora
