// Vector encoding, compiled once per target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/encode_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "quant/encode.h"
#include "quant/kernels.h"
// Once per target.
#include "quant/count-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::HWY_NAMESPACE {

#if HWY_MAX_BYTES < 32

template <typename T>
std::int64_t EncodeRunOf(const EncodeRun& run, const T* x) {
  for (std::int64_t b = 0; b < run.blocks; ++b, x += run.block_size) {
    float& scale = run.scales[b];
    if (!run.has_scales) {
      const std::uint32_t bits = MaxMagnitudeBits(x, run.block_size);
      if (bits >= kInfBits) return b;
      scale = std::bit_cast<float>(bits);
    }
    const Normalizer normalizer = NormalizerOf(*run.table, true, &scale);
    EncodeSpan(x, run.block_size, normalizer, *run.table, run.packed, b * run.block_size);
  }
  return run.blocks;
}

#else

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

// Bits of magnitudes: as integers they order like the values, and NaN comes after Inf.
template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;

// Maxima of n values, n a multiple of kKernelStep, in 128 bits.
template <typename T>
HWY_INLINE auto MaxBits(const T* x, std::int64_t n) {
  const hn::Repartition<BitsOf<T>, D> bits;
  constexpr std::int64_t kStep = hn::MaxLanes(hn::Repartition<BitsOf<T>, D>());
  const auto mask =
      hn::Set(bits, static_cast<BitsOf<T> >(std::numeric_limits<BitsOf<T> >::max() / 2));
  const auto* values = reinterpret_cast<const BitsOf<T>*>(x);
  auto largest = hn::And(hn::LoadU(bits, values), mask);
  for (std::int64_t i = kStep; i < n; i += kStep) {
    largest = hn::Max(largest, hn::And(hn::LoadU(bits, values + i), mask));
  }
  const hn::Half<decltype(bits)> half;
  const auto folded = hn::Max(hn::LowerHalf(half, largest), hn::UpperHalf(half, largest));
#if HWY_TARGET == HWY_AVX2
  return folded;
#else
  const hn::Half<decltype(half)> quarter;
  return hn::Max(hn::LowerHalf(quarter, folded), hn::UpperHalf(quarter, folded));
#endif
}

// Four 32-bit lanes of magnitudes as bits of float32: of a float, or the larger of two 16-bit ones.
using D4 = hn::FixedTag<std::uint32_t, 4>;
using V4 = hn::Vec<D4>;
constexpr D4 d4;
HWY_INLINE V4 WidenMax(V4 v, const float*) { return v; }
HWY_INLINE V4 LargerHalf(V4 v) {
  return hn::Max(hn::And(v, hn::Set(d4, 0xffff)), hn::ShiftRight<16>(v));
}
HWY_INLINE V4 WidenMax(V4 v, const BFloat16*) { return hn::ShiftLeft<16>(LargerHalf(v)); }
HWY_INLINE V4 WidenMax(V4 v, const Float16*) {
  const hn::Rebind<hwy::float16_t, D4> df16;
  const auto half = hn::DemoteTo(hn::Rebind<std::uint16_t, D4>(),
                                 hn::BitCast(hn::Rebind<std::int32_t, D4>(), LargerHalf(v)));
  return hn::BitCast(d4, hn::PromoteTo(hn::Rebind<float, D4>(), hn::BitCast(df16, half)));
}

// scales[i] = largest magnitude of block first + i, for four blocks, the block `last` replacing
// those after it; false when one holds NaN or Inf.
template <typename T>
HWY_INLINE bool MaxOfFourBlocks(const T* x, std::int64_t n, std::int64_t first, std::int64_t last,
                                float* scales) {
  const hn::Repartition<BitsOf<T>, D4> bits;
  const auto block = [&](std::int64_t i)
                         HWY_ATTR { return MaxBits(x + std::min(first + i, last) * n, n); };
  const auto larger = [&](V4 a, V4 b) HWY_ATTR {
    return hn::BitCast(d4, hn::Max(hn::BitCast(bits, a), hn::BitCast(bits, b)));
  };
  const V4 v0 = hn::BitCast(d4, block(0));
  const V4 v1 = hn::BitCast(d4, block(1));
  const V4 v2 = hn::BitCast(d4, block(2));
  const V4 v3 = hn::BitCast(d4, block(3));
  // A transposition by halves, with the maximum taken on the way.
  const V4 v01 = larger(hn::InterleaveLower(d4, v0, v1), hn::InterleaveUpper(d4, v0, v1));
  const V4 v23 = larger(hn::InterleaveLower(d4, v2, v3), hn::InterleaveUpper(d4, v2, v3));
  const V4 all = larger(hn::ConcatLowerLower(d4, v23, v01), hn::ConcatUpperUpper(d4, v23, v01));
  const V4 wide = WidenMax(all, x);
  hn::StoreU(wide, d4, reinterpret_cast<std::uint32_t*>(scales));
  return hn::AllTrue(d4, hn::Lt(wide, hn::Set(d4, kInfBits)));
}

// Demotion works within 128-bit blocks: block j of the demoted values holds part j of each vector
// that went in. Demotes to bytes and puts the parts in order.
using DI16 = hn::Repartition<std::int16_t, D>;
using DBytes = hn::Rebind<std::uint8_t, DI16>;
using VBytes = hn::Vec<DBytes>;
#if HWY_TARGET == HWY_AVX2
// Four vectors of two parts of two bytes; two vectors of two parts of four bytes.
alignas(16) constexpr std::uint8_t kFourParts[16] = {0, 1, 8,  9,  2, 3, 10, 11,
                                                     4, 5, 12, 13, 6, 7, 14, 15};
alignas(16) constexpr std::uint8_t kTwoParts[16] = {0, 1, 2, 3, 8,  9,  10, 11,
                                                    4, 5, 6, 7, 12, 13, 14, 15};
HWY_INLINE VBytes ToBytes(hn::Vec<DI16> v, const std::uint8_t* order) {
  const DBytes d8;
  return hn::TableLookupBytes(hn::DemoteTo(d8, v), hn::Load(d8, order));
}
#else
// As above in four blocks, as indices of pairs of bytes.
alignas(64) constexpr std::uint16_t kFourParts[32] = {0, 8,  16, 24, 1, 9,  17, 25,
                                                      2, 10, 18, 26, 3, 11, 19, 27};
alignas(64) constexpr std::uint16_t kTwoParts[32] = {0, 1, 8,  9,  16, 17, 24, 25,
                                                     2, 3, 10, 11, 18, 19, 26, 27};
HWY_INLINE VBytes ToBytes(hn::Vec<DI16> v, const std::uint16_t* order) {
  const __m512i bytes = _mm512_packus_epi16(v.raw, v.raw);
  const __m512i ordered = _mm512_permutexvar_epi16(_mm512_load_si512(order), bytes);
  return VBytes{_mm512_castsi512_si256(ordered)};
}
#endif

// The bytes of 4 * kLanes codes, the first code of a pair in the high nibble.
HWY_INLINE VBytes PackNibbles(VI c0, VI c1, VI c2, VI c3) {
  const DI16 di16;
  // 16 first + 1 second is the byte of the pair; one multiply-add of 16-bit lanes makes it.
  const auto weights = hn::BitCast(di16, hn::Set(di32, 0x00010010));  // 16, 1, 16, 1 ...
  auto unused = hn::Zero(di32);
  const auto p01 = hn::ReorderWidenMulAccumulate(di32, hn::ReorderDemote2To(di16, c0, c1), weights,
                                                 hn::Zero(di32), unused);
  const auto p23 = hn::ReorderWidenMulAccumulate(di32, hn::ReorderDemote2To(di16, c2, c3), weights,
                                                 hn::Zero(di32), unused);
  return ToBytes(hn::ReorderDemote2To(di16, p01, p23), kFourParts);
}

// The same from codes of even and of odd places: e0 and o0, then e1 and o1.
HWY_INLINE VBytes PackEvenOdd(VI e0, VI o0, VI e1, VI o1) {
  const auto p0 = hn::Or(hn::ShiftLeft<4>(e0), o0);
  const auto p1 = hn::Or(hn::ShiftLeft<4>(e1), o1);
  return ToBytes(hn::ReorderDemote2To(DI16(), p0, p1), kTwoParts);
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

// The factors of blocks: values are multiplied by them. NaN marks a block that is filled with one
// code.
HWY_INLINE void Factors(const EncodeTable& table, std::int64_t blocks, float* scales,
                        float* factors) {
  if (!table.flush_to_zero) {
    for (std::int64_t b = 0; b < blocks; b += kLanes) {
      const auto divisor = hn::Max(hn::LoadU(d, scales + b), hn::Set(d, kLeastDivisor));
      hn::StoreU(hn::Div(hn::Set(d, 1.0f), divisor), d, factors + b);
    }
    return;
  }
  for (std::int64_t b = 0; b < blocks; ++b) {
    const Normalizer normalizer = NormalizerOf(table, true, scales + b);
    factors[b] =
        normalizer.zero_block ? std::numeric_limits<float>::quiet_NaN() : normalizer.factor;
  }
}

// With kBlockSize > 0 the block size is known to the compiler: for the common one, a third faster.
template <std::int64_t kBlockSize, class Counter, typename T>
HWY_NOINLINE std::int64_t EncodeRunWith(const Counter& shared, const EncodeRun& run, const T* x) {
  const Counter count = shared;  // not in memory that `packed` might alias
  // Few enough blocks that the second pass finds its values in the first-level cache.
  constexpr std::int64_t kAtOnce = 16;
  const std::int64_t n = kBlockSize > 0 ? kBlockSize : run.block_size;
  // The code in both nibbles.
  const std::uint8_t zeros = run.table->zero_block_code * 0x11;
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
        // The index of the first such block, at which the caller stops.
        while (std::bit_cast<std::uint32_t>(scales[b]) < kInfBits) ++b;
        return begin + b;
      }
      std::copy_n(scales, blocks, run.scales + begin);
    }
    Factors(*run.table, blocks, scales, factors);
    std::uint8_t* packed = run.packed + begin * n / 2;
    EncodeBatch(count, values, n, blocks, factors, packed);
    count.ToCodes(packed, blocks * n / 2);
    for (std::int64_t b = 0; b < blocks; ++b) {
      // After the codes of the batch, whose loop needs no branch: blocks without a scale are rare,
      // and the codes that NaN gave them are overwritten here.
      if (HWY_UNLIKELY(std::isnan(factors[b]))) {
        std::memset(packed + b * n / 2, zeros, static_cast<std::size_t>(n / 2));
      }
    }
  }
  return run.blocks;
}

template <typename T>
std::int64_t EncodeRunOf(const EncodeRun& run, const T* x) {
  const EncodeTable& table = *run.table;
  if (!table.one_comparison) return EncodeRunWith<0>(AnyCounter(table), run, x);
  if (run.has_scales) return EncodeRunWith<0>(CutCounter(table), run, x);
  if (run.block_size == 64) return EncodeRunWith<64>(Nf4Counter(table), run, x);
  return EncodeRunWith<0>(Nf4Counter(table), run, x);
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
