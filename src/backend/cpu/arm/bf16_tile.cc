// Products of matrices of bfloat16, for processors with bfmmla: 2 rows x 4 values of k times 4
// values of k x 2 lanes are added to 4 sums.
//
// A packed row holds consecutive values; a panel holds, for each 4 values of k, `width` lanes of 4
// values:
//
//   rows    | row 0: k0 ... k3 | row 1: k0 ... k3 |
//   panel   | lane 0: k0 ... k3 | lane 1: k0 ... k3 | lane 2 ...
//   sums    | row 0: lane 0, lane 1 | row 1: lane 0, lane 1 |
#include <algorithm>

#include "backend/cpu/arm/bf16.h"
#include "backend/cpu/arm/bf16_lanes-inl.h"

HWY_PUSH_ATTRIBUTES(QLORA_NEON_BF16)

namespace qlora::cpu::bf16 {
namespace {

constexpr int kLanePairs = kPanel / 2;
constexpr std::int64_t kTileRows = 12;

HWY_INLINE bfloat16x8_t Load(const std::uint16_t* from) {
  return vreinterpretq_bf16_u16(vld1q_u16(from));
}

// A tile of c (kRows, kPanel). The last row of an odd number is multiplied twice.
template <int kRows>
void Tile(const Product& p, const std::uint16_t* a, float* c) {
  constexpr int kPairs = (kRows + 1) / 2;
  const auto* panel = static_cast<const std::uint16_t*>(p.panel);
  float32x4_t sum[kPairs][kLanePairs];
#pragma GCC unroll 6
  for (int r = 0; r < kPairs; ++r) {
    const float* row = c + 2 * r * p.c_stride;
    const float* next = 2 * r + 1 < kRows ? row + p.c_stride : row;
#pragma GCC unroll 4
    for (int v = 0; v < kLanePairs; ++v) {
      sum[r][v] =
          p.add ? vcombine_f32(vld1_f32(row + 2 * v), vld1_f32(next + 2 * v)) : vdupq_n_f32(0);
    }
  }
  for (std::int64_t k = 0; k < p.k; k += kStep, a += kStep, panel += kStep * kPanel) {
    bfloat16x8_t lanes[kLanePairs];
#pragma GCC unroll 4
    for (int v = 0; v < kLanePairs; ++v) lanes[v] = Load(panel + 2 * kStep * v);
#pragma GCC unroll 6
    for (int r = 0; r < kPairs; ++r) {
      const std::uint16_t* row = a + 2 * r * p.a_stride;
      const std::uint16_t* next = 2 * r + 1 < kRows ? row + p.a_stride : row;
      const auto rows = vreinterpretq_bf16_u16(vcombine_u16(vld1_u16(row), vld1_u16(next)));
#pragma GCC unroll 4
      for (int v = 0; v < kLanePairs; ++v) sum[r][v] = vbfmmlaq_f32(sum[r][v], rows, lanes[v]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    float* row = c + r * p.c_stride;
#pragma GCC unroll 4
    for (int v = 0; v < kLanePairs; ++v) {
      const float32x4_t both = sum[r / 2][v];
      vst1_f32(row + 2 * v, r % 2 == 0 ? vget_low_f32(both) : vget_high_f32(both));
    }
  }
}

}  // namespace

// All rows in tiles of an even number of rows, but for the last one.
void Multiply(const Product& p) {
  static constexpr auto kTiles = KernelsFor<kTileRows>([]<int kRows>() { return Tile<kRows>; });
  const auto* a = static_cast<const std::uint16_t*>(p.a);
  for (std::int64_t r = 0; r < p.rows; r += kTileRows) {
    const std::int64_t rows = std::min(kTileRows, p.rows - r);
    kTiles[rows - 1](p, a + r * p.a_stride, p.c + r * p.c_stride);
  }
}

}  // namespace qlora::cpu::bf16
HWY_POP_ATTRIBUTES
