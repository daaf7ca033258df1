// The limits of the machine that speeds of a model are compared with.
#ifndef QLORA_BENCH_BENCH_LIMITS_H_
#define QLORA_BENCH_BENCH_LIMITS_H_

#include "base/arena.h"
#include "bench/bench_clock.h"
#include "pass/flops.h"
#include "qlora/context.h"

namespace qlora::bench {

struct Limit {
  double value = 0;  // FLOP/s or bytes/s
  const char* kind = "";
};

// Multiply-adds from registers (machine/peak.h): no library product has a speed that would be a
// limit for ours, and registers have no memory to wait for.
FlopRates MeasureFlops(Context& context, const Precision& precision, Clock clock);
inline constexpr const char* kPeak = "peak multiply-adds";

// Reading of memory.
class Bandwidth {
 public:
  Bandwidth(Context& context, Clock clock);
  // Measures once more; the best counts.
  void Measure();
  const Limit& limit() const { return limit_; }

 private:
  Context& context_;
  Clock clock_;
  Arena memory_;
  Limit limit_ = {.kind = "read bandwidth"};
};

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_LIMITS_H_
