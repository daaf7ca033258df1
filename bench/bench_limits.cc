#include "bench/bench_limits.h"

#include <algorithm>

#include "bench/bench_bandwidth.h"
#include "bench/bench_row.h"
#include "machine/peak.h"
#include "machine/simd_target.h"

namespace qlora::bench {

FlopRates MeasureFlops(Context& context, const Precision& precision, Clock clock) {
  constexpr int kRuns = 16;
  return LimitRates(precision, [&](DType operands) {
    const PeakLoop& loop = PeakLoopOf(ActiveSimdTarget(), operands);
    double flops = 0;
    const std::vector<std::function<void()>> runs = {[&] { flops = RunPeakLoop(context, loop); }};
    const double seconds = BestSeconds(clock, kRuns, runs).front();
    return flops / seconds;
  });
}

Bandwidth::Bandwidth(Context& context, Clock clock)
    : context_(context), clock_(clock), memory_(kBeyondCaches) {
  std::fill_n(memory_.data(), memory_.bytes(), std::byte{1});  // pages of zeros are not read
}

void Bandwidth::Measure() {
  const Timer watch(clock_);
  ReadAll(context_, {memory_.data(), memory_.bytes()});
  limit_.value = std::max(limit_.value, static_cast<double>(memory_.bytes()) / watch.seconds());
}

}  // namespace qlora::bench
