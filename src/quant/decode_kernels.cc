// Vector decoding, compiled once per target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/decode_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include <cstdint>

#include "quant/decode.h"
#include "quant/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

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

using D = hn::ScalableTag<float>;
using DI32 = hn::Rebind<std::int32_t, D>;
constexpr D d;
constexpr DI32 di32;
using V = hn::Vec<D>;
using VI = hn::Vec<DI32>;
constexpr std::int64_t kLanes = hn::MaxLanes(D());

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

// values[k] of the 16 values in `low` and `high`.
HWY_INLINE V Lookup(V low, V high, VI k) {
#if HWY_TARGET == HWY_AVX2
  const auto in_half = hn::IndicesFromVec(d, hn::And(k, hn::Set(di32, 7)));
  const auto upper = hn::BitCast(d, hn::ShiftLeft<28>(k));  // bit 3 becomes the sign
  return hn::IfNegativeThenElse(upper, hn::TableLookupLanes(high, in_half),
                                hn::TableLookupLanes(low, in_half));
#else
  static_assert(kLanes == 16);
  (void)high;
  return hn::TableLookupLanes(low, hn::IndicesFromVec(d, k));
#endif
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
      const V first = Lookup(low, high, hn::ShiftRight<4>(pairs));
      const V second = Lookup(low, high, hn::And(pairs, hn::Set(di32, 15)));
      Put<kStream>(hn::InterleaveLower(d, first, second), d, out);
      Put<kStream>(hn::InterleaveUpper(d, first, second), d, out + kLanes);
      packed += kLanes;
      out += 2 * kLanes;
    }
  }
}

// The 16 values of a block in 16 bits, as two tables of bytes.
struct ByteTables {
  alignas(16) std::uint8_t low[16];
  alignas(16) std::uint8_t high[16];
};

// Rounded to nearest even; NaN as ToBFloat16 and ToFloat16 make it.
HWY_INLINE VI BFloat16Bits(V v) {
  const hn::Rebind<std::uint32_t, D> du32;
  const auto bits = hn::BitCast(du32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du32, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du32, 0x7fff)));
  const auto quiet = hn::Or(bits, hn::Set(du32, 0x400000));
  const auto nan = hn::RebindMask(du32, hn::IsNaN(v));
  return hn::BitCast(di32, hn::ShiftRight<16>(hn::IfThenElse(nan, quiet, rounded)));
}

HWY_INLINE VI Float16Bits(V v) {
  const hn::Rebind<hwy::float16_t, D> df16;
  const hn::Rebind<std::uint16_t, D> du16;
  const hn::Rebind<std::uint32_t, D> du32;
  const VI bits = hn::PromoteTo(di32, hn::BitCast(du16, hn::DemoteTo(df16, v)));
  const auto sign = hn::And(hn::ShiftRight<16>(hn::BitCast(du32, v)), hn::Set(du32, 0x8000));
  const auto quiet = hn::BitCast(di32, hn::Or(sign, hn::Set(du32, 0x7e00)));
  return hn::IfThenElse(hn::RebindMask(di32, hn::IsNaN(v)), quiet, bits);
}

template <bool kBrain>
HWY_INLINE void FillTables(const DecodeRun& run, std::int64_t block, ByteTables* tables) {
  const hn::Rebind<std::uint8_t, D> bytes;
  for (std::int64_t k = 0; k < 16; k += kLanes) {
    const V values = ValuesFrom(run, block, k);
    const auto bits = kBrain ? BFloat16Bits(values) : Float16Bits(values);
    hn::Store(hn::DemoteTo(bytes, hn::And(bits, hn::Set(di32, 0xff))), bytes, tables->low + k);
    hn::Store(hn::DemoteTo(bytes, hn::ShiftRight<8>(bits)), bytes, tables->high + k);
  }
}

// Decodes as many packed bytes as D8 has lanes, 16 or 32, to twice as many 16-bit values.
template <bool kStream, class D8>
HWY_INLINE void DecodeBytes(D8 d8, const std::uint8_t* packed, const ByteTables& tables,
                            std::uint16_t* out) {
  const hn::Repartition<std::uint16_t, D8> d16;
  constexpr std::int64_t kLanes16 = hn::MaxLanes(hn::Repartition<std::uint16_t, D8>());
  auto raw = hn::LoadU(d8, packed);
  if constexpr (kLanes16 == 16) {
    // The interleaved 128-bit blocks below then hold consecutive values.
    const hn::Repartition<std::uint32_t, D8> d32;
    alignas(32) static constexpr std::int32_t kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    raw = hn::BitCast(
        d8, hn::TableLookupLanes(hn::BitCast(d32, raw), hn::SetTableIndices(d32, kOrder)));
  }
  const auto low = hn::LoadDup128(d8, tables.low);
  const auto high = hn::LoadDup128(d8, tables.high);
  const auto nibble = hn::Set(d8, 15);
  const auto first = hn::And(hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, raw))), nibble);
  const auto second = hn::And(raw, nibble);
  const auto first_low = hn::TableLookupBytes(low, first);
  const auto first_high = hn::TableLookupBytes(high, first);
  const auto second_low = hn::TableLookupBytes(low, second);
  const auto second_high = hn::TableLookupBytes(high, second);
  const auto first_a = hn::BitCast(d16, hn::InterleaveLower(d8, first_low, first_high));
  const auto first_b = hn::BitCast(d16, hn::InterleaveUpper(d8, first_low, first_high));
  const auto second_a = hn::BitCast(d16, hn::InterleaveLower(d8, second_low, second_high));
  const auto second_b = hn::BitCast(d16, hn::InterleaveUpper(d8, second_low, second_high));
  Put<kStream>(hn::InterleaveLower(d16, first_a, second_a), d16, out);
  Put<kStream>(hn::InterleaveUpper(d16, first_a, second_a), d16, out + kLanes16);
  Put<kStream>(hn::InterleaveLower(d16, first_b, second_b), d16, out + 2 * kLanes16);
  Put<kStream>(hn::InterleaveUpper(d16, first_b, second_b), d16, out + 3 * kLanes16);
}

template <bool kStream, bool kBrain>
void DecodeTo16(const DecodeRun& run, std::uint16_t* out) {
  const hn::FixedTag<std::uint8_t, 32> whole;
  const hn::FixedTag<std::uint8_t, 16> half;
  const std::uint8_t* packed = run.packed;
  ByteTables tables;
  for (std::int64_t b = 0; b < run.blocks; ++b) {
    FillTables<kBrain>(run, b, &tables);
    std::int64_t i = 0;
    for (; i + 64 <= run.block_size; i += 64, packed += 32, out += 64) {
      DecodeBytes<kStream>(whole, packed, tables, out);
    }
    if (i < run.block_size) {
      DecodeBytes<kStream>(half, packed, tables, out);
      packed += 16;
      out += 32;
    }
  }
}

template <bool kStream>
void DecodeAs(const DecodeRun& run) {
  switch (run.dtype) {
    case DType::kBF16:
      return DecodeTo16<kStream, true>(run, static_cast<std::uint16_t*>(run.out));
    case DType::kF16:
      return DecodeTo16<kStream, false>(run, static_cast<std::uint16_t*>(run.out));
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
