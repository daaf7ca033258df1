// Products of codes with the tiles of AMX: 16 rows of 64 bytes. tdpbssd multiplies 16 rows of `a`
// with 16 lanes of a panel, 64 values of k, and adds to 16 x 16 sums of 32 bits. A tile goes to
// vectors through memory; while it does, the products of the next groups are computed:
//
//   tiles     group 0 | group 1 | group 2   | group 3   |
//   memory                store 0 | store 1     | store 2     | store 3
//   vectors                         add 0       | add 1         | add 2 | add 3
#include <algorithm>
#include <array>
#include <utility>

#include "backend/cpu/gemm/kernels.h"
#include "backend/cpu/int8/int8_product.h"
#include "backend/cpu/x86/avx512-inl.h"
#include "backend/cpu/x86/int8/kernels.h"
#include "backend/cpu/x86/tiles-inl.h"
#include "backend/int8/codes.h"

HWY_PUSH_ATTRIBUTES(QLORA_AVX512)

namespace qlora::cpu {
namespace {

constexpr Index kTileDepth = 64;
constexpr int kMostGroups = 4;  // of a block of sums, each of which has a tile
static_assert(kTileRows == kInt8Vector && kTileDepth == kInt8Depth);

// The first ones are sums.
constexpr int kFirstOfRows = 4;
constexpr int kFirstOfLanes = 6;

void Begin() {
  static constexpr TileConfig kConfig;
  BeginTiles(kConfig);
}

using Sums = std::int32_t[kTileRows][kInt8Vector];

// The operands of a block of sums.
struct Operands {
  const std::uint8_t* a;
  const std::int8_t* panel;
  Index panel_stride;
  Index depth;
  const float* scales;
  Index scale_stride;
};

// Adds one half of a group to the sums of its tile.
template <int kGroup, int kHalf>
HWY_INLINE void AddHalf(const Operands& in) {
  constexpr Index kFirst = kGroup * int8::kGroup + kHalf * kTileDepth;
  LoadTile<kFirstOfRows + kHalf>(in.a + kFirst, kInt8Stride);
  LoadTile<kFirstOfLanes + kHalf>(in.panel + kFirst / kInt8Step * in.panel_stride, in.panel_stride);
  MultiplyBytes<kGroup, kFirstOfRows + kHalf, kFirstOfLanes + kHalf>();
}

template <int kGroup, int kGroups>
HWY_INLINE void MultiplyGroup(const Operands& in) {
  ClearTile<kGroup>();
  AddHalf<kGroup, 0>(in);
  const bool whole = in.depth - kGroup * int8::kGroup > kTileDepth;
  if (kGroup + 1 < kGroups || whole) AddHalf<kGroup, 1>(in);
}

HWY_INLINE void AddScaled(const Sums& sums, const float* scales, __m512 (&total)[kTileRows]) {
  const __m512 scale = _mm512_loadu_ps(scales);
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums[r])), scale, total[r]);
    // Otherwise GCC keeps the sums of many groups for later.
    __asm__ volatile("" : "+v"(total[r]));
  }
}

// The steps of a column of the drawing above, and of those to its right.
template <int kStep, int kGroups>
HWY_INLINE void Steps(const Operands& in, Sums (&sums)[kGroups], __m512 (&total)[kTileRows]) {
  if constexpr (kStep < kGroups) MultiplyGroup<kStep, kGroups>(in);
  if constexpr (kStep > 0 && kStep <= kGroups)
    StoreTile<kStep - 1>(sums[kStep - 1], sizeof(sums[0][0]));
  if constexpr (kStep > 1) {
    AddScaled(sums[kStep - 2], in.scales + (kStep - 2) * in.scale_stride, total);
  }
  if constexpr (kStep <= kGroups) Steps<kStep + 1>(in, sums, total);
}

// 16 rows and 16 lanes, kGroups groups of k.
template <int kGroups>
void Block(const Int8Product& p, Index row, Index lane) {
  float* c = p.c + row * p.c_stride + lane;
  __m512 total[kTileRows];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    total[r] = p.add ? _mm512_loadu_ps(c + r * p.c_stride) : _mm512_setzero_ps();
  }
  alignas(64) Sums sums[kGroups];
  Steps<0>({.a = p.a + row * kInt8Stride,
            .panel = p.panel + lane * kInt8Step,
            .panel_stride = p.width * kInt8Step,
            .depth = p.k,
            .scales = p.scales + lane,
            .scale_stride = p.width},
           sums, total);
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    if (p.factors != nullptr)
      total[r] = _mm512_mul_ps(total[r], _mm512_set1_ps(p.factors[row + r]));
    _mm512_storeu_ps(c + r * p.c_stride, total[r]);
  }
}

// Each block fetches a part of what comes next.
void Multiply(const Int8Product& p) {
  static constexpr auto kBlocks =
      KernelsFor<kMostGroups>([]<int kGroups>() { return Block<kGroups>; });
  const auto block = kBlocks[(p.k + int8::kGroup - 1) / int8::kGroup - 1];
  const Index blocks = (p.rows + kTileRows - 1) / kTileRows * (p.width / kInt8Vector);
  const Index bytes = p.fetch_codes == nullptr ? 0 : p.width * p.k;
  const Index step = (bytes / blocks + kCacheLine - 1) / kCacheLine * kCacheLine;
  Index fetched = 0;
  for (Index row = 0; row < p.rows; row += kTileRows) {
    for (Index lane = 0; lane < p.width; lane += kInt8Vector) {
      const Index end = std::min(fetched + step, bytes);
      for (; fetched < end; fetched += kCacheLine) {
        _mm_prefetch(p.fetch_codes + fetched, _MM_HINT_T1);
      }
      block(p, row, lane);
    }
  }
}

}  // namespace

const Int8Kernels& AmxKernels() {
  static constexpr Int8Kernels kKernels = {.offset = 0,
                                           .multiply = Multiply,
                                           .begin = Begin,
                                           .end = EndTiles,
                                           .most_dots = kMostVnniDots,
                                           .dots = DotSignedCodes};
  return kKernels;
}

}  // namespace qlora::cpu
HWY_POP_ATTRIBUTES
