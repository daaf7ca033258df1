// Products of codes with sdot: four products of bytes are added to each of 4 sums of 32 bits.
#include <algorithm>

#include "backend/cpu/arm/int8.h"
#include "backend/cpu/arm/int8_sums-inl.h"
#include "backend/cpu/gemm/kernels.h"
#include "backend/int8/codes.h"

HWY_PUSH_ATTRIBUTES("arch=armv8.2-a+dotprod")

namespace qlora::cpu {
namespace {

constexpr int kTileRows = 6;
constexpr int kTileVectors = 4;  // 6 rows x 4 vectors of sums fill 24 of 32 registers
constexpr std::int64_t kTileLanes = kTileVectors * kNeonLanes;
constexpr std::int64_t kQuads = 4;  // of a row in a vector

// sum[r][v] += quad kQuad of the row times the quads of 4 lanes.
template <int kQuad, int kRows>
HWY_INLINE void AddQuad(const std::int8_t* panel, const int8x16_t (&row)[kRows],
                        int32x4_t (&sum)[kRows][kTileVectors]) {
#pragma GCC unroll 4
  for (int v = 0; v < kTileVectors; ++v) {
    const int8x16_t lanes = vld1q_s8(panel + v * kNeonLanes * kInt8Step);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      sum[r][v] = vdotq_laneq_s32(sum[r][v], lanes, row[r], kQuad);
    }
  }
}

// Lanes [lane, lane + kTileLanes) of kRows rows.
template <int kRows>
void Tile(const Int8Product& p, std::int64_t row, std::int64_t lane) {
  const std::int64_t step = kInt8Step * p.width;
  for (std::int64_t k = 0; k < p.k; k += int8::kGroup) {
    const std::uint8_t* a = p.a + row * kInt8Stride + k;
    const std::int8_t* panel = p.panel + k * p.width + lane * kInt8Step;
    int32x4_t sum[kRows][kTileVectors] = {};
    const std::int64_t depth = std::min(int8::kGroup, p.k - k);
    for (std::int64_t i = 0; i < depth; i += kQuads * kInt8Step, a += kQuads * kInt8Step) {
      int8x16_t codes[kRows];
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        codes[r] = vreinterpretq_s8_u8(vld1q_u8(a + r * kInt8Stride));
      }
      AddQuad<0>(panel, codes, sum);
      AddQuad<1>(panel + step, codes, sum);
      AddQuad<2>(panel + 2 * step, codes, sum);
      AddQuad<3>(panel + 3 * step, codes, sum);
      panel += kQuads * step;
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kTileVectors; ++v) {
        StoreScaled(sum[r][v], p, k, row + r, lane + v * kNeonLanes);
      }
    }
  }
}

}  // namespace

void MultiplyInt8Dots(const Int8Product& p) {
  static constexpr auto kTiles = KernelsFor<kTileRows>([]<int kHeight>() { return Tile<kHeight>; });
  for (std::int64_t lane = 0; lane < p.width; lane += kTileLanes) {
    ForEachTile(p.rows, kTileRows,
                [&](std::int64_t r, std::int64_t height) { kTiles[height - 1](p, r, lane); });
  }
}

}  // namespace qlora::cpu
HWY_POP_ATTRIBUTES
