// Dot products in bfloat16, for products of a few rows: bfdot adds two products to each of 4 sums.
// Their order depends on k alone.
#include <algorithm>

#include "backend/cpu/arm/bf16.h"
#include "backend/cpu/arm/bf16_lanes-inl.h"

HWY_PUSH_ATTRIBUTES(QLORA_NEON_BF16)

namespace qlora::cpu::bf16 {
namespace {

// sum += 8 products, by twos.
HWY_INLINE float32x4_t AddPairs(float32x4_t sum, uint16x8_t w, const std::uint16_t* x) {
  return vbfdotq_f32(sum, vreinterpretq_bf16_u16(w), vreinterpretq_bf16_u16(vld1q_u16(x)));
}

// Two sums of each row of x: one of the first 8 columns of every 16, one of the others.
template <int kCount>
void DotRowsOf(const ConstMatrixView& rows, const DotProduct& p) {
  const std::int64_t x_stride = RoundUp(p.k, kDotGroup);
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const auto* x = static_cast<const std::uint16_t*>(p.x);
    float32x4_t sum[kCount][2] = {};
    for (std::int64_t k = 0; k < p.k; k += 2 * kVector) {
      const uint16x8_t first = LoadBits(rows, r, k);
      const uint16x8_t second = LoadBits(rows, r, k + kVector);
#pragma GCC unroll 8
      for (int m = 0; m < kCount; ++m) {
        sum[m][0] = AddPairs(sum[m][0], first, x + m * x_stride + k);
        sum[m][1] = AddPairs(sum[m][1], second, x + m * x_stride + k + kVector);
      }
    }
    for (int m = 0; m < kCount; ++m) {
      p.out[m * p.out_stride + r] = vaddvq_f32(vaddq_f32(sum[m][0], sum[m][1]));
    }
  }
}

// The sum of a chunk is scaled.
template <int kCount>
void DotChunksOf(const QuantizedChunks& in, const DotProduct& p) {
  constexpr std::int64_t kHalf = 4 * kVector;
  const std::int64_t x_stride = RoundUp(p.k, kDotGroup);
  const Table table(in.code, 1);
  for (std::int64_t r = 0; r < in.rows; ++r) {
    const auto* x = static_cast<const std::uint16_t*>(p.x);
    float32x4_t total[kCount] = {};
    for (std::int64_t chunk = 0; chunk < in.chunks; ++chunk) {
      float32x4_t sum[kCount] = {};
      for (std::int64_t i = 0; i < kChunk; i += kHalf, x += kHalf) {
        uint16x8_t values[4];
        table.Decode(in.At(r, chunk) + i / 2, values);
#pragma GCC unroll 8
        for (int m = 0; m < kCount; ++m) {
#pragma GCC unroll 4
          for (int v = 0; v < 4; ++v) {
            sum[m] = AddPairs(sum[m], values[v], x + m * x_stride + v * kVector);
          }
        }
      }
      const float32x4_t scale = vdupq_n_f32(in.scales.At(r, chunk));
#pragma GCC unroll 8
      for (int m = 0; m < kCount; ++m) total[m] = vfmaq_f32(total[m], sum[m], scale);
    }
    for (int m = 0; m < kCount; ++m) p.out[m * p.out_stride + r] = vaddvq_f32(total[m]);
  }
}

}  // namespace

void DotRows(const ConstMatrixView& rows, const DotProduct& p) {
  static constexpr auto kDots =
      KernelsFor<kDotBatch>([]<int kCount>() { return DotRowsOf<kCount>; });
  kDots[p.count - 1](rows, p);
}

void DotChunks(const QuantizedChunks& in, const DotProduct& p) {
  static constexpr auto kDots =
      KernelsFor<kDotBatch>([]<int kCount>() { return DotChunksOf<kCount>; });
  kDots[p.count - 1](in, p);
}

}  // namespace qlora::cpu::bf16
HWY_POP_ATTRIBUTES
