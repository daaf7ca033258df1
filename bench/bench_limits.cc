#include "bench/bench_limits.h"

#include <algorithm>

#include "base/stopwatch.h"
#include "bench/bench_bandwidth.h"
#include "bench/bench_peak.h"
#include "bench/bench_row.h"

namespace qlora::bench {

Limit MeasureFlops(Context& context, DType compute) {
  return {MeasurePeakFlops(context, compute), "peak multiply-adds"};
}

Bandwidth::Bandwidth(Context& context) : context_(context), memory_(kBeyondCaches) {
  std::fill_n(memory_.data(), memory_.bytes(), std::byte{1});  // pages of zeros are not read
}

void Bandwidth::Measure() {
  const Stopwatch watch;
  ReadAll(context_, {memory_.data(), memory_.bytes()});
  limit_.value = std::max(limit_.value, static_cast<double>(memory_.bytes()) / watch.seconds());
}

}  // namespace qlora::bench
