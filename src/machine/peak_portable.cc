// The loop of processors other than x86-64: the vectors that all of them have.
#if !defined(__x86_64__)
#include <hwy/highway.h>

#include "machine/peak.h"

namespace qlora {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// 4 cycles of latency, at most 4 instructions a cycle.
constexpr int kChains = 24;
constexpr int kRounds = 1 << 18;
using Lanes = hn::FixedTag<float, 4>;

void MultiplyAdd() {
  const Lanes d;
  hn::Vec<Lanes> sums[kChains];
  auto x = hn::Set(d, 1.0f);
#pragma GCC unroll 24
  for (auto& sum : sums) sum = hn::Zero(d);
  for (int i = 0; i < kRounds; ++i) {
    // The compiler must not know the value, or it would compute the sums itself.
    asm volatile("" : "+w"(x.raw));
#pragma GCC unroll 24
    for (auto& sum : sums) sum = hn::MulAdd(x, x, sum);
  }
#pragma GCC unroll 24
  for (auto& sum : sums) asm volatile("" : : "w"(sum.raw));
}

constexpr PeakLoop kLoops[] = {
    {"fmla 4s", "f32", 8, std::int64_t{kChains} * kRounds, [] { return true; }, MultiplyAdd}};

}  // namespace

std::span<const PeakLoop> PeakLoops() { return kLoops; }

const PeakLoop& PeakLoopOf(SimdTarget, DType) { return kLoops[0]; }

}  // namespace qlora
#endif
