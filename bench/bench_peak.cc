#include "bench/bench_peak.h"

#include <immintrin.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/stopwatch.h"
#include "machine/simd_target.h"

namespace qlora::bench {
namespace {

constexpr int kIterations = 1 << 20;
// Independent chains: more than 2 ports x 6 cycles of latency, the most of any of these processors
// (vdpbf16ps of Zen 5). With one operand they fit 32 registers; AVX2 and scalars have 16, and
// latencies of 4 and 5.
constexpr int kChains = 24;
constexpr int kFewChains = 12;

// Each loop keeps its operands in registers and returns its FLOPs; `sink` keeps the result alive.
__attribute__((target("avx512f,avx512bf16"))) double LoopBf16(float* sink) {
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  const __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f803f80);  // pairs of 1.0
  for (int i = 0; i < kIterations; ++i) {
#pragma GCC unroll 24
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, x, x);
  }
  __m512 total = sums[0];
  for (int c = 1; c < kChains; ++c) total = _mm512_add_ps(total, sums[c]);
  float lanes[16];
  _mm512_storeu_ps(lanes, total);
  *sink = lanes[0];
  return 64.0 * kChains * kIterations;  // 32 multiply-adds
}

__attribute__((target("avx512f,avx512vnni"))) double LoopInt8(float* sink) {
  __m512i sums[kChains];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  const __m512i x = _mm512_set1_epi8(1);
  for (int i = 0; i < kIterations; ++i) {
#pragma GCC unroll 24
    // GCC 12 copies the sums of the intrinsic.
    for (__m512i& sum : sums) __asm__("vpdpbusd %1, %1, %0" : "+v"(sum) : "v"(x));
  }
  __m512i total = sums[0];
  for (int c = 1; c < kChains; ++c) total = _mm512_add_epi32(total, sums[c]);
  int lanes[16];
  _mm512_storeu_si512(lanes, total);
  *sink = static_cast<float>(lanes[0]);
  return 128.0 * kChains * kIterations;  // 64 multiply-adds
}

__attribute__((target("avx512f"))) double LoopAvx512(float* sink) {
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  const __m512 x = _mm512_set1_ps(1.0f);
  for (int i = 0; i < kIterations; ++i) {
#pragma GCC unroll 24
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(x, x, sum);
  }
  __m512 total = sums[0];
  for (int c = 1; c < kChains; ++c) total = _mm512_add_ps(total, sums[c]);
  float lanes[16];
  _mm512_storeu_ps(lanes, total);
  *sink = lanes[0];
  // 16 lanes, a product and a sum each.
  return 32.0 * kChains * kIterations;
}

__attribute__((target("avx2,fma"))) double LoopAvx2(float* sink) {
  __m256 sums[kFewChains];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  const __m256 x = _mm256_set1_ps(1.0f);
  for (int i = 0; i < kIterations; ++i) {
#pragma GCC unroll 12
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(x, x, sum);
  }
  __m256 total = sums[0];
  for (int c = 1; c < kFewChains; ++c) total = _mm256_add_ps(total, sums[c]);
  float lanes[8];
  _mm256_storeu_ps(lanes, total);
  *sink = lanes[0];
  // 8 lanes.
  return 16.0 * kFewChains * kIterations;
}

double LoopScalar(float* sink) {
  // The compiler must not know the value, or it would compute the sums itself.
  volatile float one = 1.0f;
  const float x = one;
  float sums[kFewChains] = {};
  for (int i = 0; i < kIterations; ++i) {
#pragma GCC unroll 12
    for (float& sum : sums) sum += x * x;
  }
  for (const float sum : sums) *sink += sum;
  return 2.0 * kFewChains * kIterations;
}

double Loop(SimdTarget target, DType dtype, float* sink) {
  if (dtype == DType::kI8 && target >= SimdTarget::kAvx512 &&
      __builtin_cpu_supports("avx512vnni") != 0) {
    return LoopInt8(sink);
  }
  switch (target) {
    case SimdTarget::kAvx512Bf16:
      return dtype == DType::kBF16 ? LoopBf16(sink) : LoopAvx512(sink);
    case SimdTarget::kAvx512:
      return LoopAvx512(sink);
    case SimdTarget::kAvx2:
      return LoopAvx2(sink);
    case SimdTarget::kScalar:
      return LoopScalar(sink);
  }
  return 0;
}

}  // namespace

double MultiplyAdd(Context& context, DType dtype) {
  const SimdTarget target = ActiveSimdTarget();
  std::vector<double> flops(context.threads());
  // 64 bytes apart: threads that write to one cache line wait for each other.
  std::vector<float> sinks(flops.size() * 16);
  context.ParallelFor(context.threads(), [&](std::int64_t i, int) {
    flops[i] = Loop(target, dtype, &sinks[static_cast<std::size_t>(i) * 16]);
  });
  return std::accumulate(flops.begin(), flops.end(), 0.0);
}

double MeasurePeakFlops(Context& context, DType dtype) {
  double best = 0;
  // Takes the best repetition: a peak is undisturbed.
  for (int repetition = 0; repetition < 8; ++repetition) {
    const Stopwatch watch;
    const double flops = MultiplyAdd(context, dtype);
    best = std::max(best, flops / watch.seconds());
  }
  return best;
}

}  // namespace qlora::bench
