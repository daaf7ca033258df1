// Vector encoding, compiled once per target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/encode_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "quant/encode.h"
#include "quant/kernels.h"
#include "quant/tables.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

template <typename T>
std::int64_t EncodeRunOf(const EncodeRun& run, const T* x) {
  const EncodeTable& table = EncodeTableOf(run.type, run.rule);
  for (std::int64_t b = 0; b < run.blocks; ++b, x += run.block_size) {
    float& scale = run.scales[b];
    if (!run.has_scales) {
      const std::uint32_t bits = MaxMagnitudeBits(x, run.block_size, 0.0f);
      if (bits >= kInfBits) return b;
      scale = std::bit_cast<float>(bits);
    }
    const Normalizer normalizer = NormalizerOf(run.rule, true, 0.0f, &scale);
    EncodeSpan(x, run.block_size, normalizer, table, run.packed, b * run.block_size);
  }
  return run.blocks;
}

#else

using D = hn::ScalableTag<float>;
using D32 = hn::Rebind<std::uint32_t, D>;
using DI32 = hn::Rebind<std::int32_t, D>;
constexpr D d;
constexpr D32 du32;
constexpr DI32 di32;
using V = hn::Vec<D>;
using VI = hn::Vec<DI32>;
constexpr std::int64_t kLanes = hn::MaxLanes(D());

HWY_INLINE V Load(const float* x) { return hn::LoadU(d, x); }
HWY_INLINE V Load(const BFloat16* x) {
  const hn::Rebind<std::uint16_t, D> d16;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(x));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du32, bits)));
}
HWY_INLINE V Load(const Float16* x) {
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(x)));
}

// Lane-wise bits of the largest magnitudes of n values, n a multiple of kKernelStep. As integers,
// the bits of magnitudes order like their values, and NaN comes after Inf.
HWY_INLINE hn::Vec<D32> MaxLaneBits(const float* x, std::int64_t n) {
  const auto mask = hn::Set(du32, 0x7fffffff);
  auto largest = hn::And(hn::BitCast(du32, hn::LoadU(d, x)), mask);
  for (std::int64_t i = kLanes; i < n; i += kLanes) {
    largest = hn::Max(largest, hn::And(hn::BitCast(du32, hn::LoadU(d, x + i)), mask));
  }
  return largest;
}
template <typename T>
HWY_INLINE hn::Vec<D32> MaxLaneBits(const T* x, std::int64_t n) {
  const hn::Repartition<std::uint16_t, D> du16;
  const auto mask = hn::Set(du16, 0x7fff);
  const auto* bits = reinterpret_cast<const std::uint16_t*>(x);
  auto largest = hn::And(hn::LoadU(du16, bits), mask);
  for (std::int64_t i = 2 * kLanes; i < n; i += 2 * kLanes) {
    largest = hn::Max(largest, hn::And(hn::LoadU(du16, bits + i), mask));
  }
  const auto even = hn::And(hn::BitCast(du32, largest), hn::Set(du32, 0xffff));
  return hn::Max(even, hn::ShiftRight<16>(hn::BitCast(du32, largest)));
}

// The bits of a magnitude of type T as those of a float32.
template <class D4>
HWY_INLINE hn::Vec<D4> WidenBits(D4, hn::Vec<D4> bits, const float*) {
  return bits;
}
template <class D4>
HWY_INLINE hn::Vec<D4> WidenBits(D4, hn::Vec<D4> bits, const BFloat16*) {
  return hn::ShiftLeft<16>(bits);
}
template <class D4>
HWY_INLINE hn::Vec<D4> WidenBits(D4 d4, hn::Vec<D4> bits, const Float16*) {
  const hn::Rebind<std::uint16_t, D4> d16;
  const hn::Rebind<hwy::float16_t, D4> df16;
  const hn::Rebind<std::int32_t, D4> di4;
  const auto half = hn::DemoteTo(d16, hn::BitCast(di4, bits));
  return hn::BitCast(d4, hn::PromoteTo(hn::Rebind<float, D4>(), hn::BitCast(df16, half)));
}

// scales[i] = largest magnitude of block first + i, for four blocks, the block `last` standing in
// for those after it; false when one holds NaN or Inf.
template <typename T>
HWY_INLINE bool MaxOfFourBlocks(const T* x, std::int64_t n, std::int64_t first, std::int64_t last,
                                float* scales) {
  const hn::FixedTag<std::uint32_t, 4> d4;
  using V4 = hn::Vec<hn::FixedTag<std::uint32_t, 4> >;
  const auto fold = [&](std::int64_t i) HWY_ATTR {
    const auto all = MaxLaneBits(x + std::min(first + i, last) * n, n);
    const hn::Half<D32> half;
    const auto folded = hn::Max(hn::LowerHalf(half, all), hn::UpperHalf(half, all));
#if HWY_TARGET == HWY_AVX2
    return folded;
#else
    const hn::Half<hn::Half<D32> > quarter;
    return hn::Max(hn::LowerHalf(quarter, folded), hn::UpperHalf(quarter, folded));
#endif
  };
  const V4 v0 = fold(0);
  const V4 v1 = fold(1);
  const V4 v2 = fold(2);
  const V4 v3 = fold(3);
  // A transposition by halves, with the maximum taken on the way.
  const V4 v01 = hn::Max(hn::InterleaveLower(d4, v0, v1), hn::InterleaveUpper(d4, v0, v1));
  const V4 v23 = hn::Max(hn::InterleaveLower(d4, v2, v3), hn::InterleaveUpper(d4, v2, v3));
  const V4 bits = hn::Max(hn::ConcatLowerLower(d4, v23, v01), hn::ConcatUpperUpper(d4, v23, v01));
  const V4 wide = WidenBits(d4, bits, x);
  hn::StoreU(wide, d4, reinterpret_cast<std::uint32_t*>(scales));
  return hn::AllTrue(d4, hn::Lt(wide, hn::Set(d4, kInfBits)));
}

#if HWY_TARGET == HWY_AVX2

// The number of NF4 thresholds below x. They lie so near a line that k = floor(10 x + 7.25), cut
// off to [0, 14], is the number sought or one less:
//   x <= t[k] gives floor <= k, and x > t[k] gives floor >= k, because k <= 10 t[k] + 7.25 < k + 1
// (checked below, with the rounding of the sum to 1/16; one side suffices at the ends), and
// rounding and cutting off keep order. So one comparison decides, exactly.
constexpr float kSlope = 10.0f;
constexpr float kIntercept = 7.25f;
// Adding this leaves the sum in steps of 1/16: its bits from 4 up are kBase and the integer part.
constexpr float kAligned = 0x1.8p19f;
constexpr std::int32_t kBase = std::bit_cast<std::int32_t>(kAligned) >> 4;
constexpr bool IsNearLine(const std::array<float, 15>& thresholds) {
  for (int k = 0; k < 15; ++k) {
    const double h = double{kSlope} * thresholds[static_cast<std::size_t>(k)] + kIntercept;
    if (k > 0 && h - 1.0 / 32 < k) return false;
    if (k < 14 && h + 1.0 / 32 >= k + 1) return false;
  }
  return true;
}
static_assert(IsNearLine(kNf4CpuTable.thresholds));
static_assert(IsNearLine(kNf4CudaTable.thresholds));

class Nf4Counter {
 public:
  explicit HWY_INLINE Nf4Counter(const EncodeTable& table)
      : low_(hn::LoadU(d, table.thresholds.data())),
        high_(hn::MaskedLoad(hn::FirstN(d, 7), d, table.thresholds.data() + 8)) {}
  HWY_INLINE VI operator()(V x) const {
    const auto sum = hn::MulAdd(x, hn::Set(d, kSlope), hn::Set(d, kAligned + kIntercept));
    const auto cut = hn::Min(hn::Max(sum, hn::Set(d, kAligned)), hn::Set(d, kAligned + 14));
    const auto k = hn::ShiftRight<4>(hn::BitCast(di32, cut));  // plus kBase
    const auto in_half = hn::IndicesFromVec(d, hn::And(k, hn::Set(di32, 7)));
    const auto threshold = hn::IfNegativeThenElse(
        hn::BitCast(d, hn::ShiftLeft<28>(k)),  // bit 3 becomes the sign
        hn::TableLookupLanes(high_, in_half), hn::TableLookupLanes(low_, in_half));
    const auto above = hn::RebindMask(di32, hn::Gt(x, threshold));
    return hn::Sub(k, hn::IfThenElse(above, hn::Set(di32, kBase - 1), hn::Set(di32, kBase)));
  }
  // The count is the code.
  HWY_INLINE void ToCodes(std::uint8_t*, std::int64_t) const {}

 private:
  V low_;
  V high_;
};

#else

// The number of NF4 thresholds below x in [-1, 1] (up to rounding), by a grid of 32 cells: x lies
// in cell 15.4 x + 16, rounded. A cell holds one threshold at most, and rounding keeps order, so
// those in earlier cells are below x, those in later ones are not, and one comparison decides,
// exactly.
constexpr float kCellsPerUnit = 15.4f;
constexpr float kCellOrigin = 0x1.8p23f + 16;  // the lower five bits of the sum are the cell
struct Grid {
  alignas(64) std::array<float, 32> threshold;     // of the cell, or infinity
  alignas(64) std::array<std::int32_t, 32> below;  // thresholds in earlier cells
  bool exact;  // no two in one cell, none so near a border that rounding decides
};
constexpr Grid MakeGrid(const EncodeTable& table) {
  Grid grid{};
  grid.threshold.fill(std::numeric_limits<float>::infinity());
  grid.exact = true;
  for (const float t : table.thresholds) {
    const double place = double{kCellsPerUnit} * t + 16.5;
    const auto cell = static_cast<std::size_t>(place);
    const double within = place - static_cast<double>(cell);
    grid.exact &= within > 0.001 && within < 0.999;
    grid.exact &= grid.threshold[cell] == std::numeric_limits<float>::infinity();
    grid.threshold[cell] = t;
    for (std::size_t later = cell + 1; later < 32; ++later) ++grid.below[later];
  }
  return grid;
}
constexpr Grid kCpuGrid = MakeGrid(kNf4CpuTable);
constexpr Grid kCudaGrid = MakeGrid(kNf4CudaTable);
static_assert(kCpuGrid.exact && kCudaGrid.exact);

class Nf4Counter {
 public:
  explicit HWY_INLINE Nf4Counter(const EncodeTable& table)
      : Nf4Counter(&table == &kNf4CudaTable ? kCudaGrid : kCpuGrid) {}
  HWY_INLINE VI operator()(V x) const {
    const auto cell = hn::BitCast(di32, hn::MulAdd(x, cells_per_unit_, origin_));
    // Highway 1.0 has no lookup in two vectors.
    const V threshold{_mm512_permutex2var_ps(threshold0_.raw, cell.raw, threshold1_.raw)};
    const VI below{_mm512_permutex2var_epi32(below0_.raw, cell.raw, below1_.raw)};
    const auto above = hn::RebindMask(di32, hn::Gt(x, threshold));
    return hn::IfThenElse(above, hn::Add(below, one_), below);
  }
  // The count is the code.
  HWY_INLINE void ToCodes(std::uint8_t*, std::int64_t) const {}

 private:
  explicit HWY_INLINE Nf4Counter(const Grid& grid)
      : threshold0_(hn::Load(d, grid.threshold.data())),
        threshold1_(hn::Load(d, grid.threshold.data() + 16)),
        below0_(hn::Load(di32, grid.below.data())),
        below1_(hn::Load(di32, grid.below.data() + 16)) {}
  V threshold0_;
  V threshold1_;
  VI below0_;
  VI below1_;
  // Members, so that the compiler does not make them anew for every block.
  V cells_per_unit_ = hn::Set(d, kCellsPerUnit);
  V origin_ = hn::Set(d, kCellOrigin);
  VI one_ = hn::Set(di32, 1);
};

#endif

HWY_INLINE VI CountIf(hn::Mask<D> mask, VI base) {
  return hn::Sub(base, hn::VecFromMask(di32, hn::RebindMask(di32, mask)));
}

// The same for any x: thresholds lie within [-1, 1].
class CutCounter : public Nf4Counter {
 public:
  explicit HWY_INLINE CutCounter(const EncodeTable& table) : Nf4Counter(table) {}
  HWY_INLINE VI operator()(V x) const {
    const V cut = hn::Min(hn::Max(x, hn::Set(d, -1.0f)), hn::Set(d, 1.0f));
    return Nf4Counter::operator()(cut);
  }
};

// The same for any thresholds, by comparing with all of them; and codes in any order.
class AnyCounter {
 public:
  explicit AnyCounter(const EncodeTable& table) : thresholds_(table.thresholds) {
    for (std::size_t i = 0; i < map_.size(); ++i) {
      map_[i] = static_cast<std::uint8_t>(table.codes[i >> 4] << 4 | table.codes[i & 15]);
    }
  }
  HWY_INLINE VI operator()(V x) const {
    auto count = hn::Zero(di32);
    for (const float t : thresholds_) count = CountIf(hn::Gt(x, hn::Set(d, t)), count);
    return count;
  }
  HWY_INLINE void ToCodes(std::uint8_t* packed, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) packed[i] = map_[packed[i]];
  }

 private:
  std::array<float, 15> thresholds_;
  std::array<std::uint8_t, 256> map_;
};

// Demotion works within 128-bit blocks, so that block j of its result holds part j of each vector
// that went in; the last step of packing puts the parts in order.
using DBytes = hn::Rebind<std::uint8_t, hn::Repartition<std::int16_t, D> >;
using VBytes = hn::Vec<DBytes>;
HWY_INLINE VBytes ReorderWords(VBytes bytes, const std::int32_t* order) {
  const hn::Repartition<std::uint32_t, DBytes> d32;
  return hn::BitCast(
      DBytes(), hn::TableLookupLanes(hn::BitCast(d32, bytes), hn::SetTableIndices(d32, order)));
}

// The bytes of 4 * kLanes codes, the first code of a pair in the high nibble.
HWY_INLINE VBytes PackNibbles(VI c0, VI c1, VI c2, VI c3) {
  const hn::Repartition<std::int16_t, D> di16;
  const DBytes d8;
  const auto weights = hn::BitCast(di16, hn::Set(di32, 0x00010010));  // 16, 1, 16, 1 ...
  auto unused = hn::Zero(di32);
  const auto p01 = hn::ReorderWidenMulAccumulate(di32, hn::ReorderDemote2To(di16, c0, c1), weights,
                                                 hn::Zero(di32), unused);
  const auto p23 = hn::ReorderWidenMulAccumulate(di32, hn::ReorderDemote2To(di16, c2, c3), weights,
                                                 hn::Zero(di32), unused);
  const auto bytes = hn::DemoteTo(d8, hn::ReorderDemote2To(di16, p01, p23));
  // Two bytes of c0, two of c1 ... twice: together what belongs together.
  alignas(16) static constexpr std::uint8_t kWithin[16] = {0, 1, 8,  9,  2, 3, 10, 11,
                                                           4, 5, 12, 13, 6, 7, 14, 15};
  const auto within = hn::TableLookupBytes(bytes, hn::LoadDup128(d8, kWithin));
#if HWY_TARGET == HWY_AVX2
  return within;
#else
  alignas(32) static constexpr std::int32_t kAcross[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  return ReorderWords(within, kAcross);
#endif
}

// The same from codes of even and of odd places: e0 and o0, then e1 and o1.
HWY_INLINE VBytes PackEvenOdd(VI e0, VI o0, VI e1, VI o1) {
  const hn::Repartition<std::int16_t, D> di16;
  const auto p0 = hn::Or(hn::ShiftLeft<4>(e0), o0);
  const auto p1 = hn::Or(hn::ShiftLeft<4>(e1), o1);
  const auto bytes = hn::DemoteTo(DBytes(), hn::ReorderDemote2To(di16, p0, p1));
  // Four bytes of p0, four of p1, and so on.
#if HWY_TARGET == HWY_AVX2
  alignas(16) static constexpr std::int32_t kOrder[4] = {0, 2, 1, 3};
#else
  alignas(32) static constexpr std::int32_t kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
#endif
  return ReorderWords(bytes, kOrder);
}

// Encodes 4 * kLanes values, or with kHalf only 2 * kLanes into the lower half of the bytes.
template <bool kHalf, class Counter, typename T>
HWY_INLINE VBytes EncodeGroup(const Counter& count, const T* x, V factor) {
  const auto codes = [&](std::int64_t i)
                         HWY_ATTR { return count(hn::Mul(Load(x + i * kLanes), factor)); };
  if constexpr (kHalf) return PackNibbles(codes(0), codes(1), hn::Zero(di32), hn::Zero(di32));
  return PackNibbles(codes(0), codes(1), codes(2), codes(3));
}

// A 32-bit lane of bfloat16 memory is an even value below an odd one.
template <bool kHalf, class Counter>
HWY_INLINE VBytes EncodeGroup(const Counter& count, const BFloat16* x, V factor) {
  const auto pairs = [&](std::int64_t i) HWY_ATTR {
    return hn::LoadU(du32, reinterpret_cast<const std::uint32_t*>(x) + i * kLanes);
  };
  const auto even = [&](hn::Vec<D32> v) HWY_ATTR {
    return count(hn::Mul(hn::BitCast(d, hn::ShiftLeft<16>(v)), factor));
  };
  const auto odd = [&](hn::Vec<D32> v) HWY_ATTR {
    return count(hn::Mul(hn::BitCast(d, hn::And(v, hn::Set(du32, 0xffff0000u))), factor));
  };
  const auto v0 = pairs(0);
  if constexpr (kHalf) return PackEvenOdd(even(v0), odd(v0), hn::Zero(di32), hn::Zero(di32));
  const auto v1 = pairs(1);
  return PackEvenOdd(even(v0), odd(v0), even(v1), odd(v1));
}

// Blocks of n values each.
template <class Counter, typename T>
HWY_INLINE void EncodeBatch(const Counter& count, const T* x, std::int64_t n, std::int64_t blocks,
                            const float* factors, std::uint8_t* packed) {
  constexpr std::int64_t kGroup = 4 * kLanes;
  if (n % kGroup == 0 && n <= 4 * kGroup) {
    // One loop over all blocks: with an inner one so short, a third of the time went into it.
    const std::int64_t groups = n / kGroup;
    for (std::int64_t g = 0, left = groups; g < blocks * groups; ++g) {
      const auto bytes = EncodeGroup<false>(count, x + g * kGroup, hn::Set(d, *factors));
      hn::StoreU(bytes, DBytes(), packed + g * kGroup / 2);
      if (--left == 0) {
        left = groups;
        ++factors;
      }
    }
    return;
  }
  for (std::int64_t b = 0; b < blocks; ++b, x += n, packed += n / 2) {
    const V factor = hn::Set(d, factors[b]);
    std::int64_t i = 0;
    for (; i + kGroup <= n; i += kGroup) {
      hn::StoreU(EncodeGroup<false>(count, x + i, factor), DBytes(), packed + i / 2);
    }
    if (i < n) {  // 32 values are left of vectors of 16
      hn::StoreU(hn::LowerHalf(EncodeGroup<true>(count, x + i, factor)), hn::Half<DBytes>(),
                 packed + i / 2);
    }
  }
}

// What the values of a block are multiplied by; NaN marks a block that is filled with one code.
HWY_INLINE void Factors(EncodeRule rule, std::int64_t blocks, float* scales, float* factors) {
  if (rule == EncodeRule::kBnbCpu) {
    for (std::int64_t b = 0; b < blocks; b += kLanes) {
      const auto divisor = hn::Max(hn::LoadU(d, scales + b), hn::Set(d, 1e-38f));
      hn::StoreU(hn::Div(hn::Set(d, 1.0f), divisor), d, factors + b);
    }
    return;
  }
  for (std::int64_t b = 0; b < blocks; ++b) {
    const Normalizer normalizer = NormalizerOf(rule, true, 0.0f, scales + b);
    factors[b] =
        normalizer.zero_block ? std::numeric_limits<float>::quiet_NaN() : normalizer.factor;
  }
}

template <class Counter, typename T>
HWY_NOINLINE std::int64_t EncodeRunWith(const Counter& shared, const EncodeRun& run, const T* x) {
  const Counter count = shared;  // not in memory that `packed` might alias
  // Few enough blocks that the second pass finds its values in the first-level cache.
  constexpr std::int64_t kAtOnce = 16;
  const std::int64_t n = run.block_size;
  const std::uint8_t zeros = EncodeTableOf(run.type, run.rule).zero_block_code * 0x11;
  float scales[kAtOnce] = {};
  float factors[kAtOnce];
  for (std::int64_t begin = 0; begin < run.blocks; begin += kAtOnce) {
    const std::int64_t blocks = std::min(kAtOnce, run.blocks - begin);
    const T* values = x + begin * n;
    if (run.has_scales) {
      std::copy_n(run.scales + begin, blocks, scales);
    } else {
      for (std::int64_t b = 0; b < blocks; b += 4) {
        if (MaxOfFourBlocks(values, n, b, blocks - 1, scales + b)) continue;
        while (std::bit_cast<std::uint32_t>(scales[b]) < kInfBits) ++b;
        return begin + b;
      }
      std::copy_n(scales, blocks, run.scales + begin);
    }
    Factors(run.rule, blocks, scales, factors);
    std::uint8_t* packed = run.packed + begin * n / 2;
    EncodeBatch(count, values, n, blocks, factors, packed);
    count.ToCodes(packed, blocks * n / 2);
    for (std::int64_t b = 0; b < blocks; ++b) {
      if (HWY_UNLIKELY(std::isnan(factors[b]))) {
        std::memset(packed + b * n / 2, zeros, static_cast<std::size_t>(n / 2));
      }
    }
  }
  return run.blocks;
}

template <typename T>
std::int64_t EncodeRunOf(const EncodeRun& run, const T* x) {
  const EncodeTable& table = EncodeTableOf(run.type, run.rule);
  if (run.type == QuantType::kFp4) return EncodeRunWith(AnyCounter(table), run, x);
  if (run.has_scales) return EncodeRunWith(CutCounter(table), run, x);
  return EncodeRunWith(Nf4Counter(table), run, x);
}

#endif

std::int64_t EncodeBlocksOn(const EncodeRun& run) {
  switch (run.dtype) {
    case DType::kBF16:
      return EncodeRunOf(run, static_cast<const BFloat16*>(run.x));
    case DType::kF16:
      return EncodeRunOf(run, static_cast<const Float16*>(run.x));
    default:
      return EncodeRunOf(run, static_cast<const float*>(run.x));
  }
}

}  // namespace qlora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora {

HWY_EXPORT(EncodeBlocksOn);
std::int64_t EncodeBlocks(const EncodeRun& run) {
  return HWY_DYNAMIC_DISPATCH(EncodeBlocksOn)(run);
}

}  // namespace qlora
#endif
