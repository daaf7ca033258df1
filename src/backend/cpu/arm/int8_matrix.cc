// Products of codes with usmmla: 2 rows x 8 codes times 8 codes x 2 lanes are added to 4 sums of 32
// bits.
//
//   row pair        | row 0: k0 ... k7 | row 1: k0 ... k7 |     unsigned, code + 128
//   lane pair       | lane 0: k0 ... k7 | lane 1: k0 ... k7 |   signed; two quads of the panel
//   sums            | row 0: lane 0, lane 1 | row 1: lane 0, lane 1 |
#include <algorithm>

#include "backend/cpu/arm/int8.h"
#include "backend/cpu/arm/int8_sums-inl.h"
#include "backend/cpu/gemm/kernels.h"
#include "backend/int8/codes.h"

HWY_PUSH_ATTRIBUTES("arch=armv8.2-a+dotprod+i8mm")

namespace qlora::cpu {
namespace {

constexpr int kTilePairs = 4;  // of rows and of lanes: 16 vectors of sums
constexpr std::int64_t kTileLanes = 2 * kTilePairs;
constexpr std::int64_t kCodes = 8;  // of a row in a matrix

// The codes of lanes [0, kTileLanes) for two quads of the panel, `step` apart.
HWY_INLINE void LoadLanes(const std::int8_t* panel, std::int64_t step,
                          int8x16_t (&lanes)[kTilePairs]) {
  for (int v = 0; v < kTilePairs / 2; ++v) {
    const std::int8_t* from = panel + v * kNeonLanes * kInt8Step;
    const int32x4_t first = vreinterpretq_s32_s8(vld1q_s8(from));
    const int32x4_t second = vreinterpretq_s32_s8(vld1q_s8(from + step));
    lanes[2 * v] = vreinterpretq_s8_s32(vzip1q_s32(first, second));
    lanes[2 * v + 1] = vreinterpretq_s8_s32(vzip2q_s32(first, second));
  }
}

// Lanes [lane, lane + kTileLanes) of kRows rows. The last row of an odd number is multiplied twice.
template <int kRows>
void Tile(const Int8Product& p, std::int64_t row, std::int64_t lane) {
  constexpr int kPairs = (kRows + 1) / 2;
  const std::int64_t step = kInt8Step * p.width;
  for (std::int64_t k = 0; k < p.k; k += int8::kGroup) {
    const std::uint8_t* a = p.a + row * kInt8Stride + k;
    const std::int8_t* panel = p.panel + k * p.width + lane * kInt8Step;
    const std::int32_t* starts = p.starts + k / int8::kGroup * p.width + lane;
    int32x4_t sum[kPairs][kTilePairs];
    for (int v = 0; v < kTilePairs; ++v) {
      const int32x2_t start = vld1_s32(starts + 2 * v);
      for (int r = 0; r < kPairs; ++r) sum[r][v] = vcombine_s32(start, start);
    }
    const std::int64_t depth = std::min(int8::kGroup, p.k - k);
    for (std::int64_t i = 0; i < depth; i += kCodes, a += kCodes, panel += 2 * step) {
      int8x16_t lanes[kTilePairs];
      LoadLanes(panel, step, lanes);
#pragma GCC unroll 4
      for (int r = 0; r < kPairs; ++r) {
        const std::uint8_t* pair = a + 2 * r * kInt8Stride;
        const uint8x16_t rows =
            vcombine_u8(vld1_u8(pair), vld1_u8(2 * r + 1 < kRows ? pair + kInt8Stride : pair));
#pragma GCC unroll 4
        for (int v = 0; v < kTilePairs; ++v) {
          sum[r][v] = vusmmlaq_s32(sum[r][v], rows, lanes[v]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kTilePairs; v += 2) {
        const auto& from = sum[r / 2];
        const int32x4_t sums =
            r % 2 == 0 ? vcombine_s32(vget_low_s32(from[v]), vget_low_s32(from[v + 1]))
                       : vcombine_s32(vget_high_s32(from[v]), vget_high_s32(from[v + 1]));
        StoreScaled(sums, p, k, row + r, lane + 2 * v);
      }
    }
  }
}

}  // namespace

// All rows in tiles of an even number of rows, but for the last one.
void MultiplyInt8Matrices(const Int8Product& p) {
  constexpr std::int64_t kTileRows = 2 * kTilePairs;
  static constexpr auto kTiles = KernelsFor<kTileRows>([]<int kHeight>() { return Tile<kHeight>; });
  for (std::int64_t lane = 0; lane < p.width; lane += kTileLanes) {
    for (std::int64_t r = 0; r < p.rows; r += kTileRows) {
      kTiles[std::min(kTileRows, p.rows - r) - 1](p, r, lane);
    }
  }
}

}  // namespace qlora::cpu
HWY_POP_ATTRIBUTES
