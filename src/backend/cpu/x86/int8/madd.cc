// Products of codes for processors without vpdpbusd: vpmaddwd adds two products of 16 bits, so
// codes are widened. (vpmaddubsw, which reads bytes, saturates with codes + 128: 2 * 127 * 255 >
// 32767.)
//
//   panel       | lane 0: k0 k1 | lane 1: k0 k1 | ...
//   times a row | k0 k1         | k0 k1         | ...
//
// Words; with vectors of 512 bits k0 to k3 of a lane, whose two sums are added behind a group.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/x86/int8/madd.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "backend/cpu/gemm/kernels.h"
#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/views.h"
#include "backend/cpu/x86/int8/kernels.h"
#include "backend/int8/codes.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
namespace {

using Index = std::int64_t;
using IntTag = hn::RebindToSigned<FloatTag>;
using WordTag = hn::Repartition<std::int16_t, IntTag>;

constexpr Index kRows = 12;  // that are widened at a time
constexpr Index kTileLanes = kInt8Vector;
constexpr Index kPack = HWY_TARGET == HWY_AVX2 ? 2 : 4;  // words of a lane side by side
// 12 sums, two vectors of lanes, one of a row and one of products are the 16 registers of AVX2.
constexpr int kTileRows = 6;
constexpr int kVectors = static_cast<int>(kTileLanes * kPack / (2 * kLanes));

// `count` codes, a multiple of kInt8Depth, as words.
HWY_INLINE void Widen(const void* codes, Index count, std::int16_t* out) {
  const WordTag d;
  const hn::Rebind<std::int8_t, WordTag> d8;
  const auto* from = static_cast<const std::int8_t*>(codes);
  for (Index i = 0; i < count; i += 2 * kLanes) {
    hn::Store(hn::PromoteTo(d, hn::LoadU(d8, from + i)), d, out + i);
  }
}

// kInt8Step codes of each of kTileLanes lanes as words, kPack of each lane side by side.
HWY_INLINE void WidenLanes(const std::int8_t* codes, std::int16_t* out) {
  if constexpr (kPack == kInt8Step) {
    Widen(codes, kInt8Step * kTileLanes, out);
  } else {
    const WordTag d;
    const hn::Repartition<std::int8_t, WordTag> d8;
    const auto low = hn::BitCast(d, hn::LoadU(d8, codes));
    const auto high = hn::BitCast(d, hn::LoadU(d8, codes + 2 * kTileLanes));
    HWY_ALIGN std::int8_t pairs[kInt8Step * kTileLanes];
    hn::Store(hn::BitCast(d8, hn::ConcatEven(d, high, low)), d8, pairs);
    hn::Store(hn::BitCast(d8, hn::ConcatOdd(d, high, low)), d8, pairs + 2 * kTileLanes);
    Widen(pairs, kInt8Step * kTileLanes, out);
  }
}

struct Words {
  HWY_ALIGN std::int16_t panels[kInt8Lanes / kTileLanes][int8::kGroup * kTileLanes];
  HWY_ALIGN std::int16_t rows[kRows][int8::kGroup];
};

// sum + two products of words each. Written as such, because GCC 12 moves products until registers
// are short.
HWY_INLINE hn::Vec<IntTag> AddPairs(hn::Vec<IntTag> sums, hn::Vec<WordTag> lanes,
                                    hn::Vec<WordTag> row) {
  auto sum = sums.raw;
  auto products = sums.raw;
  __asm__ volatile("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0"
                   : "+v"(sum), "=&v"(products)
                   : "v"(lanes.raw), "v"(row.raw));
  return hn::Vec<IntTag>{sum};
}

// kPack words of a row in all lanes.
HWY_INLINE hn::Vec<WordTag> PackOf(const std::int16_t* row) {
  using Pack = std::conditional_t<kPack == 2, std::int32_t, std::int64_t>;
  Pack pack;
  std::memcpy(&pack, row, sizeof(pack));
  return hn::BitCast(WordTag(), hn::Set(hn::Repartition<Pack, WordTag>(), pack));
}

// The sums of lanes [v * kLanes, (v + 1) * kLanes).
HWY_INLINE hn::Vec<IntTag> WholeSums(const hn::Vec<IntTag>* sums, int v) {
  if constexpr (kPack == 2) return sums[v];
  const IntTag d;
  const auto even = hn::ConcatEven(d, sums[2 * v + 1], sums[2 * v]);
  return hn::Add(even, hn::ConcatOdd(d, sums[2 * v + 1], sums[2 * v]));
}

// One group of kHeight rows, which are rows[first] and so on; kTileLanes lanes.
template <int kHeight>
void Tile(const Words& words, Index first, const std::int16_t* panel, Index depth,
          const float* scales, bool add, float* c, Index c_stride) {
  const IntTag d;
  const WordTag d16;
  const FloatTag f;
  hn::Vec<IntTag> sum[kHeight][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kHeight; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  const std::int16_t* row = words.rows[first];
#pragma GCC unroll 2
  for (Index k = 0; k < depth; k += kPack, panel += kPack * kTileLanes) {
    hn::Vec<WordTag> lanes[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) lanes[v] = hn::Load(d16, panel + v * 2 * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kHeight; ++r) {
      const auto pack = PackOf(row + r * int8::kGroup + k);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = AddPairs(sum[r][v], lanes[v], pack);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kHeight; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kTileLanes / kLanes; ++v) {
      float* to = c + r * c_stride + v * kLanes;
      const auto before = add ? hn::LoadU(f, to) : hn::Zero(f);
      const auto scale = hn::LoadU(f, scales + v * kLanes);
      const auto whole = hn::ConvertTo(f, WholeSums(sum[r], v));
      hn::StoreU(hn::MulAdd(whole, scale, before), f, to);
    }
  }
}

void MultiplyGroup(const Int8Product& p, Index group) {
  static constexpr auto kTiles = KernelsFor<kTileRows>([]<int kHeight>() { return Tile<kHeight>; });
  const Index k = group * int8::kGroup;
  const Index depth = std::min(int8::kGroup, p.k - k);
  Words words;
  for (Index i = 0; i < depth; i += kInt8Step) {
    for (Index lane = 0; lane < p.width; lane += kTileLanes) {
      WidenLanes(p.panel + (k + i) * p.width + lane * kInt8Step,
                 words.panels[lane / kTileLanes] + i * kTileLanes);
    }
  }
  for (Index first = 0; first < p.rows; first += kRows) {
    const Index rows = std::min(kRows, p.rows - first);
    for (Index r = 0; r < rows; ++r) {
      Widen(p.a + (first + r) * kInt8Stride + k, RoundUp(depth, kInt8Depth), words.rows[r]);
    }
    for (Index lane = 0; lane < p.width; lane += kTileLanes) {
      for (Index r = 0; r < rows; r += kTileRows) {
        const Index height = std::min<Index>(kTileRows, rows - r);
        kTiles[height - 1](words, r, words.panels[lane / kTileLanes], depth,
                           p.scales + group * p.width + lane, p.add || group > 0,
                           p.c + (first + r) * p.c_stride + lane, p.c_stride);
      }
    }
  }
}

}  // namespace

void MultiplyMadd(const Int8Product& p) {
  for (Index group = 0; group * int8::kGroup < p.k; ++group) MultiplyGroup(p, group);
  const FloatTag f;
  for (Index r = 0; r < p.rows && p.factors != nullptr; ++r) {
    for (Index i = 0; i < p.width; i += kLanes) {
      float* to = p.c + r * p.c_stride + i;
      hn::StoreU(hn::Mul(hn::LoadU(f, to), hn::Set(f, p.factors[r])), f, to);
    }
  }
}

#else
void MultiplyMadd(const Int8Product& /*p*/) {}
#endif
}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(MultiplyMadd);

const Int8Kernels& MaddKernels() {
  static constexpr Int8Kernels kKernels = {.offset = 0,
                                           .multiply =
                                               [](const Int8Product& p) {
                                                 HWY_DYNAMIC_DISPATCH(MultiplyMadd)
                                                 (p);
                                               },
                                           .most_dots = kMostDots,
                                           .dots = DotCodesAsWords};
  return kKernels;
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE
