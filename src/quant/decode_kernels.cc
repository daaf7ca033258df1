// Vector decoding, compiled once per target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/decode_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include <cmath>
#include <cstdint>

#include "quant/decode.h"
#include "quant/kernels.h"
// Once per target.
#include "quant/count-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::HWY_NAMESPACE {

inline const float* ShiftOf(const DecodeRun& run, std::int64_t block) {
  return run.shifts == nullptr ? nullptr : run.shifts + block;
}

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

template <typename T>
void DecodeScalar(const DecodeRun& run, T* out) {
  for (std::int64_t b = 0; b < run.blocks; ++b) {
    DecodeSpan(run.packed, b * run.block_size, run.block_size,
               BlockValues(run.code, run.scales[b], ShiftOf(run, b)), out + b * run.block_size);
  }
}

void DecodeBlocksOn(const DecodeRun& run) {
  switch (run.dtype) {
    case DType::kBF16:
      return DecodeScalar(run, static_cast<BFloat16*>(run.out));
    case DType::kF16:
      return DecodeScalar(run, static_cast<Float16*>(run.out));
    default:
      return DecodeScalar(run, static_cast<float*>(run.out));
  }
}

#else

// Vectors of code[k + i] * scale (+ shift): the values of one block, kLanes at a time.
HWY_INLINE V ValuesFrom(const DecodeRun& run, std::int64_t block, std::int64_t k) {
  const auto values = hn::Mul(hn::LoadU(d, run.code + k), hn::Set(d, run.scales[block]));
  return run.shifts == nullptr ? values : hn::Add(values, hn::Set(d, run.shifts[block]));
}

template <bool kStream, class DOut, typename T>
HWY_INLINE void Put(hn::Vec<DOut> v, DOut tag, T* out) {
  if constexpr (kStream) {
    hn::Stream(v, tag, out);
  } else {
    hn::StoreU(v, tag, out);
  }
}

template <bool kStream>
void DecodeToFloat(const DecodeRun& run, float* out) {
  const hn::Rebind<std::uint8_t, D> bytes;
  // So ordered, the two interleaved halves of 128-bit blocks are consecutive values.
#if HWY_TARGET == HWY_AVX2
  alignas(16) static constexpr std::uint8_t kOrder[16] = {0, 1, 4, 5, 2, 3, 6, 7};
#else
  alignas(16) static constexpr std::uint8_t kOrder[16] = {0, 1, 8,  9,  2, 3, 10, 11,
                                                          4, 5, 12, 13, 6, 7, 14, 15};
#endif
  const auto order = hn::Load(bytes, kOrder);
  const std::uint8_t* packed = run.packed;
  for (std::int64_t b = 0; b < run.blocks; ++b) {
    const V low = ValuesFrom(run, b, 0);
    const V high = ValuesFrom(run, b, 16 - kLanes);
    for (std::int64_t i = 0; i < run.block_size; i += 2 * kLanes) {
      const auto raw = hn::TableLookupBytes(hn::LoadU(bytes, packed), order);
      const VI pairs = hn::PromoteTo(di32, raw);
      const V first = Lookup16(low, high, hn::ShiftRight<4>(pairs));
      const V second = Lookup16(low, high, hn::And(pairs, hn::Set(di32, 15)));
      Put<kStream>(hn::InterleaveLower(d, first, second), d, out);
      Put<kStream>(hn::InterleaveUpper(d, first, second), d, out + kLanes);
      packed += kLanes;
      out += 2 * kLanes;
    }
  }
}

using D8 = hn::FixedTag<std::uint8_t, 32>;
using V8 = hn::Vec<D8>;
constexpr D8 d8;

// The 16 values of a block in 16 bits, as tables of their lower and upper bytes, once in each
// 128-bit half.
struct ByteTables {
  V8 low;
  V8 high;
};

// From 32-bit lanes whose bytes `first` and `first` + 1 are the value.
#if HWY_TARGET == HWY_AVX2
template <int first>
HWY_INLINE ByteTables TablesFrom(VI v0, VI v1) {
  constexpr std::uint8_t a = first, b = first + 1;
  // Per half: four lower bytes, then four upper bytes.
  alignas(32) static constexpr std::uint8_t kSplit[32] = {
      a, a + 4, a + 8, a + 12, b, b + 4, b + 8, b + 12, a, a, a, a, a, a, a, a,
      a, a + 4, a + 8, a + 12, b, b + 4, b + 8, b + 12, a, a, a, a, a, a, a, a};
  alignas(32) static constexpr std::int32_t kGather[8] = {0, 4, 1, 5, 0, 4, 1, 5};
  const auto split = hn::Load(d8, kSplit);
  const auto gather = hn::SetTableIndices(di32, kGather);
  const hn::Repartition<std::uint64_t, D8> d64;
  const auto part = [&](VI v) HWY_ATTR {
    const VI bytes = hn::BitCast(di32, hn::TableLookupBytes(hn::BitCast(d8, v), split));
    return hn::BitCast(d64, hn::TableLookupLanes(bytes, gather));
  };
  const auto p0 = part(v0);
  const auto p1 = part(v1);
  return {hn::BitCast(d8, hn::InterleaveLower(d64, p0, p1)),
          hn::BitCast(d8, hn::InterleaveUpper(d64, p0, p1))};
}
#else
template <int first>
HWY_INLINE ByteTables TablesFrom(VI v, VI) {
  constexpr std::uint8_t a = first, b = first + 1;
  const hn::Repartition<std::uint8_t, DI32> bytes;
  alignas(16) static constexpr std::uint8_t kSplit[16] = {
      a, a + 4, a + 8, a + 12, b, b + 4, b + 8, b + 12, a, a, a, a, a, a, a, a};
  alignas(64) static constexpr std::int32_t kGather[16] = {0, 4, 8, 12, 0, 4, 8, 12,
                                                           1, 5, 9, 13, 1, 5, 9, 13};
  const auto split = hn::TableLookupBytes(hn::BitCast(bytes, v), hn::LoadDup128(bytes, kSplit));
  const auto tables = hn::BitCast(
      bytes, hn::TableLookupLanes(hn::BitCast(di32, split), hn::SetTableIndices(di32, kGather)));
  return {hn::LowerHalf(d8, tables), hn::UpperHalf(d8, tables)};
}
#endif

// Rounded to nearest even into the upper half of each lane. The values are no NaN.
HWY_INLINE VI BFloat16Bits(V v) {
  const hn::Rebind<std::uint32_t, D> du32;
  const auto bits = hn::BitCast(du32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du32, 1));
  return hn::BitCast(di32, hn::Add(bits, hn::Add(odd, hn::Set(du32, 0x7fff))));
}

// Rounded to nearest even into the lower half of each lane.
HWY_INLINE VI Float16Bits(V v) {
  const hn::Rebind<hwy::float16_t, D> df16;
  const hn::Rebind<std::uint16_t, D> du16;
  return hn::PromoteTo(di32, hn::BitCast(du16, hn::DemoteTo(df16, v)));
}

template <bool kBrain>
HWY_INLINE ByteTables TablesOf(const DecodeRun& run, std::int64_t block) {
  const V low = ValuesFrom(run, block, 0);
  const V high = ValuesFrom(run, block, 16 - kLanes);
  if constexpr (kBrain) return TablesFrom<2>(BFloat16Bits(low), BFloat16Bits(high));
  return TablesFrom<0>(Float16Bits(low), Float16Bits(high));
}

// Decodes as many packed bytes as DB has lanes, 16 or 32, to twice as many 16-bit values.
template <bool kStream, class DB>
HWY_INLINE void DecodeBytes(DB db, const std::uint8_t* packed, hn::Vec<DB> low, hn::Vec<DB> high,
                            std::uint16_t* out) {
  const hn::Repartition<std::uint16_t, DB> d16;
  constexpr std::int64_t kLanes16 = hn::MaxLanes(hn::Repartition<std::uint16_t, DB>());
  auto raw = hn::LoadU(db, packed);
  if constexpr (kLanes16 == 16) {
    // The interleaved 128-bit blocks below then hold consecutive values.
    const hn::Repartition<std::uint32_t, DB> d32;
    alignas(32) static constexpr std::int32_t kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    raw = hn::BitCast(
        db, hn::TableLookupLanes(hn::BitCast(d32, raw), hn::SetTableIndices(d32, kOrder)));
  }
  const auto nibble = hn::Set(db, 15);
  const auto first = hn::And(hn::BitCast(db, hn::ShiftRight<4>(hn::BitCast(d16, raw))), nibble);
  const auto second = hn::And(raw, nibble);
  const auto first_low = hn::TableLookupBytes(low, first);
  const auto first_high = hn::TableLookupBytes(high, first);
  const auto second_low = hn::TableLookupBytes(low, second);
  const auto second_high = hn::TableLookupBytes(high, second);
  const auto first_a = hn::BitCast(d16, hn::InterleaveLower(db, first_low, first_high));
  const auto first_b = hn::BitCast(d16, hn::InterleaveUpper(db, first_low, first_high));
  const auto second_a = hn::BitCast(d16, hn::InterleaveLower(db, second_low, second_high));
  const auto second_b = hn::BitCast(d16, hn::InterleaveUpper(db, second_low, second_high));
  Put<kStream>(hn::InterleaveLower(d16, first_a, second_a), d16, out);
  Put<kStream>(hn::InterleaveUpper(d16, first_a, second_a), d16, out + kLanes16);
  Put<kStream>(hn::InterleaveLower(d16, first_b, second_b), d16, out + 2 * kLanes16);
  Put<kStream>(hn::InterleaveUpper(d16, first_b, second_b), d16, out + 3 * kLanes16);
}

template <bool kStream, bool kBrain, typename T>
void DecodeTo16(const DecodeRun& run, T* typed_out) {
  const hn::Half<D8> half;
  const std::uint8_t* packed = run.packed;
  auto* out = reinterpret_cast<std::uint16_t*>(typed_out);
  for (std::int64_t b = 0; b < run.blocks; ++b, packed += run.block_size / 2) {
    if (!std::isfinite(run.scales[b])) {  // only a damaged file has such
      DecodeSpan(packed, 0, run.block_size, BlockValues(run.code, run.scales[b], ShiftOf(run, b)),
                 reinterpret_cast<T*>(out));
      out += run.block_size;
      continue;
    }
    const ByteTables tables = TablesOf<kBrain>(run, b);
    std::int64_t i = 0;
    for (; i + 64 <= run.block_size; i += 64, out += 64) {
      DecodeBytes<kStream>(d8, packed + i / 2, tables.low, tables.high, out);
    }
    if (i < run.block_size) {
      DecodeBytes<kStream>(half, packed + i / 2, hn::LowerHalf(half, tables.low),
                           hn::LowerHalf(half, tables.high), out);
      out += 32;
    }
  }
}

template <bool kStream>
void DecodeAs(const DecodeRun& run) {
  switch (run.dtype) {
    case DType::kBF16:
      return DecodeTo16<kStream, true>(run, static_cast<BFloat16*>(run.out));
    case DType::kF16:
      return DecodeTo16<kStream, false>(run, static_cast<Float16*>(run.out));
    default:
      return DecodeToFloat<kStream>(run, static_cast<float*>(run.out));
  }
}

void DecodeBlocksOn(const DecodeRun& run) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(run.out) % 64 == 0;
  return run.stream && aligned ? DecodeAs<true>(run) : DecodeAs<false>(run);
}

#endif

}  // namespace qlora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora {

HWY_EXPORT(DecodeBlocksOn);
void DecodeBlocks(const DecodeRun& run) { HWY_DYNAMIC_DISPATCH(DecodeBlocksOn)(run); }

}  // namespace qlora
#endif
