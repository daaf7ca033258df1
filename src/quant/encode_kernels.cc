// Vector encoding, compiled once per target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/encode_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

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

// float32 bits of the largest magnitude of n values, n a multiple of kKernelStep. As integers, the
// bits of magnitudes order like their values, and NaN comes after Inf.
HWY_INLINE std::uint32_t MaxBits(const float* x, std::int64_t n) {
  const auto mask = hn::Set(du32, 0x7fffffff);
  auto largest = hn::Zero(du32);
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const auto bits = hn::BitCast(du32, hn::LoadU(d, x + i));
    largest = hn::Max(largest, hn::And(bits, mask));
  }
  return hn::GetLane(hn::MaxOfLanes(du32, largest));
}
template <typename T>
HWY_INLINE std::uint32_t MaxBits(const T* x, std::int64_t n) {
  const hn::Repartition<std::uint16_t, D> du16;
  constexpr std::int64_t kLanes16 = hn::MaxLanes(hn::Repartition<std::uint16_t, D>());
  const auto mask = hn::Set(du16, 0x7fff);
  auto largest = hn::Zero(du16);
  for (std::int64_t i = 0; i < n; i += kLanes16) {
    const auto bits = hn::LoadU(du16, reinterpret_cast<const std::uint16_t*>(x) + i);
    largest = hn::Max(largest, hn::And(bits, mask));
  }
  const auto even = hn::And(hn::BitCast(du32, largest), hn::Set(du32, 0xffff));
  const auto odd = hn::ShiftRight<16>(hn::BitCast(du32, largest));
  const std::uint32_t bits = hn::GetLane(hn::MaxOfLanes(du32, hn::Max(even, odd)));
  return std::bit_cast<std::uint32_t>(ToFloat(T{static_cast<std::uint16_t>(bits)}));
}

// table[k] of 16 floats, k in [0, 16).
class Table16 {
 public:
  explicit HWY_INLINE Table16(const float* table)
      : low_(hn::LoadU(d, table)), high_(hn::LoadU(d, table + 16 - kLanes)) {}
  HWY_INLINE V operator[](VI k) const {
#if HWY_TARGET == HWY_AVX2
    const auto in_half = hn::IndicesFromVec(d, hn::And(k, hn::Set(di32, 7)));
    const auto upper = hn::BitCast(d, hn::ShiftLeft<28>(k));  // bit 3 becomes the sign
    return hn::IfNegativeThenElse(upper, hn::TableLookupLanes(high_, in_half),
                                  hn::TableLookupLanes(low_, in_half));
#else
    static_assert(kLanes == 16);
    return hn::TableLookupLanes(low_, hn::IndicesFromVec(d, k));
#endif
  }

 private:
  V low_;
  V high_;
};

HWY_INLINE VI CountIf(hn::Mask<D> mask, VI base) {
  return hn::Sub(base, hn::VecFromMask(di32, hn::RebindMask(di32, mask)));
}

// The number of NF4 thresholds below x, |x| <= 1 up to rounding. The thresholds lie so near a line
// that k = floor(10 x + 7.25), within [0, 14], is the number sought or one less:
//   x <= t[k] gives floor <= k, and x > t[k] gives floor >= k, because k <= 10 t[k] + 7.25 < k + 1
// (checked below, with the rounding of the sum to 1/16) and rounding keeps order. So one comparison
// decides, exactly.
constexpr float kSlope = 10.0f;
constexpr float kIntercept = 7.25f;
// Adding this leaves the sum in steps of 1/16: the bits from 4 up hold its integer part.
constexpr float kAligned = 0x1.8p19f;
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
  explicit HWY_INLINE Nf4Counter(const std::array<float, 15>& thresholds)
      : table_(Padded(thresholds).data()) {}
  HWY_INLINE VI operator()(V x) const {
    const auto sum = hn::MulAdd(x, hn::Set(d, kSlope), hn::Set(d, kAligned + kIntercept));
    const auto clamped = hn::Min(hn::Max(sum, hn::Set(d, kAligned)), hn::Set(d, kAligned + 14));
    const auto bits = hn::ShiftRight<4>(hn::BitCast(di32, clamped));
    const auto k = hn::And(bits, hn::Set(di32, 15));
    return CountIf(hn::Gt(x, table_[k]), k);
  }
  // The count is the code.
  HWY_INLINE void ToCodes(std::uint8_t*, std::int64_t) const {}

 private:
  static std::array<float, 16> Padded(const std::array<float, 15>& thresholds) {
    std::array<float, 16> padded{};
    std::copy(thresholds.begin(), thresholds.end(), padded.begin());
    return padded;
  }
  Table16 table_;
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

// The bytes of 2 * kLanes codes in two vectors, first code of a pair in the high nibble.
using DBytes = hn::Rebind<std::uint8_t, D>;
HWY_INLINE hn::Vec<DBytes> PackNibbles(VI first, VI second) {
  const hn::Repartition<std::int16_t, D> di16;
  const DBytes bytes;
  // 128-bit block j of `pairs` holds bytes 2j, 2j + 1 of the first vector, then of the second.
  const auto codes = hn::ReorderDemote2To(di16, first, second);
  const auto weights = hn::BitCast(di16, hn::Set(di32, 0x00010010));  // 16, 1, 16, 1 ...
  auto unused = hn::Zero(di32);
  const auto pairs = hn::ReorderWidenMulAccumulate(di32, codes, weights, hn::Zero(di32), unused);
#if HWY_TARGET == HWY_AVX2
  alignas(16) static constexpr std::uint8_t kOrder[16] = {0, 1, 4, 5, 2, 3, 6, 7};
#else
  alignas(16) static constexpr std::uint8_t kOrder[16] = {0, 1, 4, 5, 8,  9,  12, 13,
                                                          2, 3, 6, 7, 10, 11, 14, 15};
#endif
  return hn::TableLookupBytes(hn::DemoteTo(bytes, pairs), hn::Load(bytes, kOrder));
}

template <class Counter, typename T>
HWY_INLINE void EncodeBlock(const Counter& count, const T* x, std::int64_t n, float factor,
                            std::uint8_t* packed) {
  const auto f = hn::Set(d, factor);
  for (std::int64_t i = 0; i < n; i += 2 * kLanes) {
    const auto first = count(hn::Mul(Load(x + i), f));
    const auto second = count(hn::Mul(Load(x + i + kLanes), f));
    hn::StoreU(PackNibbles(first, second), DBytes(), packed + i / 2);
  }
}

template <class Counter, typename T>
HWY_NOINLINE std::int64_t EncodeRunWith(const Counter& count, const EncodeRun& run, const T* x) {
  // Few enough blocks that the second pass finds its values in the first-level cache.
  constexpr std::int64_t kAtOnce = 16;
  const std::int64_t n = run.block_size;
  const EncodeTable& table = EncodeTableOf(run.type, run.rule);
  std::array<Normalizer, kAtOnce> normalizers;
  for (std::int64_t begin = 0; begin < run.blocks; begin += kAtOnce) {
    const std::int64_t blocks = std::min(kAtOnce, run.blocks - begin);
    float* scales = run.scales + begin;
    const T* values = x + begin * n;
    if (!run.has_scales) {
      for (std::int64_t b = 0; b < blocks; ++b) {
        const std::uint32_t bits = MaxBits(values + b * n, n);
        if (bits >= kInfBits) return begin + b;
        scales[b] = std::bit_cast<float>(bits);
      }
    }
    for (std::int64_t b = 0; b < blocks; ++b) {
      normalizers[static_cast<std::size_t>(b)] = NormalizerOf(run.rule, true, 0.0f, scales + b);
    }
    for (std::int64_t b = 0; b < blocks; ++b) {
      const Normalizer& normalizer = normalizers[static_cast<std::size_t>(b)];
      std::uint8_t* packed = run.packed + (begin + b) * n / 2;
      if (normalizer.zero_block) {
        std::memset(packed, table.zero_block_code * 0x11, static_cast<std::size_t>(n / 2));
      } else {
        EncodeBlock(count, values + b * n, n, normalizer.factor, packed);
        count.ToCodes(packed, n / 2);
      }
    }
  }
  return run.blocks;
}

template <typename T>
std::int64_t EncodeRunOf(const EncodeRun& run, const T* x) {
  const EncodeTable& table = EncodeTableOf(run.type, run.rule);
  if (run.type == QuantType::kNf4) return EncodeRunWith(Nf4Counter(table.thresholds), run, x);
  return EncodeRunWith(AnyCounter(table), run, x);
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
