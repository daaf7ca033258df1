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

// out(256) = map * scale + offset
void TabulateOn(const float* map, float scale, float offset, float* out) {
  const hn::ScalableTag<float> tag;
  for (std::size_t i = 0; i < 256; i += hn::Lanes(tag)) {
    const auto scaled = hn::Mul(hn::LoadU(tag, map + i), hn::Set(tag, scale));
    hn::StoreU(hn::Add(scaled, hn::Set(tag, offset)), tag, out + i);
  }
}

#if HWY_MAX_BYTES < 32

template <typename T>
void DecodeScalar(const DecodeRun& run, T* out) {
  for (std::int64_t b = 0; b < run.blocks; ++b) {
    DecodeSpan(run.packed, b * run.block_size, run.block_size, BlockValues(run.code, run.scales[b]),
               out + b * run.block_size);
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

// Vectors of code[k + i] * scale: the values of one block, kLanes at a time.
HWY_INLINE V ValuesFrom(const DecodeRun& run, std::int64_t block, std::int64_t k) {
  return hn::Mul(hn::LoadU(d, run.code + k), hn::Set(d, run.scales[block]));
}

template <bool kStream, class DOut, typename T>
HWY_INLINE void Put(hn::Vec<DOut> v, DOut tag, T* out) {
  if constexpr (kStream) {
    // Past the caches: DecodeBlocksOn streams only to aligned outputs, which such stores demand.
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
    // With 16 lanes both begin at 0 and `low` alone is used.
    const V high = ValuesFrom(run, b, 16 - kLanes);
    for (std::int64_t i = 0; i < run.block_size; i += 2 * kLanes) {
      // With 8 lanes, as values of the 8 bytes (byte i holds values 2i and 2i + 1):
      //   first   0  2  8 10 |  4  6 12 14      lower   0 1  2  3 |  4  5  6  7
      //   second  1  3  9 11 |  5  7 13 15      upper   8 9 10 11 | 12 13 14 15
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

// The 16-bit form of values, rounded to nearest even, in the upper half of each lane; the lower
// half does not matter. The values are not NaN.
//
// float32 to bfloat16 without a branch: u += 0x7fff + (u >> 16 & 1) carries into the upper half
// when the lower half is above one half, or equal to one half while the upper half is odd.
template <bool kBrain>
HWY_INLINE VI UpperBits(V v) {
  if constexpr (kBrain) {
    const hn::Rebind<std::uint32_t, D> du32;
    const auto bits = hn::BitCast(du32, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du32, 1));
    return hn::BitCast(di32, hn::Add(bits, hn::Add(odd, hn::Set(du32, 0x7fff))));
  }
  const hn::Rebind<hwy::float16_t, D> df16;
  const hn::Rebind<std::uint16_t, D> du16;
  return hn::ShiftLeft<16>(hn::PromoteTo(di32, hn::BitCast(du16, hn::DemoteTo(df16, v))));
}

#if HWY_TARGET == HWY_AVX2

using D8 = hn::FixedTag<std::uint8_t, 32>;
using V8 = hn::Vec<D8>;
constexpr D8 d8;

// The 16 values of a block in 16 bits, as tables of their lower and upper bytes, once in each
// 128-bit half.
class Table {
 public:
  template <bool kBrain>
  static HWY_INLINE Table Of(const DecodeRun& run, std::int64_t block) {
    // Per half: four lower bytes, then four upper bytes of the 16-bit values.
    alignas(32) static constexpr std::uint8_t kSplit[32] = {2,  6,  10, 14, 3, 7, 11, 15, 0,  0, 0,
                                                            0,  0,  0,  0,  0, 2, 6,  10, 14, 3, 7,
                                                            11, 15, 0,  0,  0, 0, 0,  0,  0,  0};
    alignas(32) static constexpr std::int32_t kGather[8] = {0, 4, 1, 5, 0, 4, 1, 5};
    const hn::Repartition<std::uint64_t, D8> d64;
    const auto part = [&](std::int64_t k) HWY_ATTR {
      const VI bits = UpperBits<kBrain>(ValuesFrom(run, block, k));
      const auto bytes = hn::TableLookupBytes(hn::BitCast(d8, bits), hn::Load(d8, kSplit));
      const auto gather = hn::SetTableIndices(di32, kGather);
      return hn::BitCast(d64, hn::TableLookupLanes(hn::BitCast(di32, bytes), gather));
    };
    const auto p0 = part(0);
    const auto p1 = part(8);
    return {hn::BitCast(d8, hn::InterleaveLower(d64, p0, p1)),
            hn::BitCast(d8, hn::InterleaveUpper(d64, p0, p1))};
  }

  // Decodes 16 or 32 packed bytes.
  template <bool kStream, int kBytes>
  HWY_INLINE void Decode(const std::uint8_t* packed, std::uint16_t* out) const {
    const hn::FixedTag<std::uint8_t, kBytes> db;
    const hn::Repartition<std::uint16_t, decltype(db)> d16;
    constexpr std::int64_t kStep = kBytes / 2;
    auto raw = hn::LoadU(db, packed);
    hn::Vec<decltype(db)> low, high;
    if constexpr (kBytes == 32) {
      // So ordered, the interleaved 128-bit blocks below hold consecutive values.
      alignas(32) static constexpr std::int32_t kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
      raw = hn::BitCast(
          db, hn::TableLookupLanes(hn::BitCast(di32, raw), hn::SetTableIndices(di32, kOrder)));
      low = low_;
      high = high_;
    } else {
      low = hn::LowerHalf(db, low_);
      high = hn::LowerHalf(db, high_);
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
    Put<kStream>(hn::InterleaveUpper(d16, first_a, second_a), d16, out + kStep);
    Put<kStream>(hn::InterleaveLower(d16, first_b, second_b), d16, out + 2 * kStep);
    Put<kStream>(hn::InterleaveUpper(d16, first_b, second_b), d16, out + 3 * kStep);
  }

 private:
  Table(V8 low, V8 high) : low_(low), high_(high) {}
  V8 low_;
  V8 high_;
};

#else

// The 16 values of a block in the odd 16-bit lanes. Highway 1.0 has no lookup of 16-bit lanes.
class Table {
 public:
  template <bool kBrain>
  static HWY_INLINE Table Of(const DecodeRun& run, std::int64_t block) {
    return Table(UpperBits<kBrain>(ValuesFrom(run, block, 0)));
  }

  // Decodes 16 or 32 packed bytes.
  template <bool kStream, int kBytes>
  HWY_INLINE void Decode(const std::uint8_t* packed, std::uint16_t* out) const {
    const hn::FixedTag<std::uint16_t, 32> d16;
    alignas(64) static constexpr std::uint16_t kLower[32] = {
        0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
        8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    __m512i bytes;
    if constexpr (kBytes == 32) {
      bytes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(packed)));
    } else {
      bytes = _mm512_castsi256_si512(
          _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(packed))));
    }
    // Only bits 0 to 4 of an index count. The values are in the odd lanes of the table, 2 code + 1:
    // a shift of 3 makes the high nibble times 2, a shift to the left the low one.
    const __m512i one = _mm512_set1_epi16(1);
    const __m512i first =
        _mm512_permutexvar_epi16(_mm512_or_si512(_mm512_srli_epi16(bytes, 3), one), values_.raw);
    const __m512i second =
        _mm512_permutexvar_epi16(_mm512_or_si512(_mm512_slli_epi16(bytes, 1), one), values_.raw);
    const __m512i lower = _mm512_load_si512(kLower);
    const __m512i upper = _mm512_add_epi16(lower, _mm512_set1_epi16(16));
    const hn::Vec<decltype(d16)> low{_mm512_permutex2var_epi16(first, lower, second)};
    Put<kStream>(low, d16, out);
    if constexpr (kBytes == 32) {
      const hn::Vec<decltype(d16)> high{_mm512_permutex2var_epi16(first, upper, second)};
      Put<kStream>(high, d16, out + 32);
    }
  }

 private:
  explicit Table(VI values) : values_(values) {}
  VI values_;
};

#endif

template <bool kStream, bool kBrain, typename T>
void DecodeTo16(const DecodeRun& run, T* typed_out) {
  const std::uint8_t* packed = run.packed;
  auto* out = reinterpret_cast<std::uint16_t*>(typed_out);
  for (std::int64_t b = 0; b < run.blocks; ++b, packed += run.block_size / 2) {
    // UpperBits rounds by adding, which would carry NaN into another number.
    if (!std::isfinite(run.scales[b])) {  // only a damaged file has such
      DecodeSpan(packed, 0, run.block_size, BlockValues(run.code, run.scales[b]),
                 reinterpret_cast<T*>(out));
      out += run.block_size;
      continue;
    }
    const Table table = Table::Of<kBrain>(run, b);
    std::int64_t i = 0;
    for (; i + 64 <= run.block_size; i += 64, out += 64) {
      table.Decode<kStream, 32>(packed + i / 2, out);
    }
    if (i < run.block_size) {
      table.Decode<kStream, 16>(packed + i / 2, out);
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

HWY_EXPORT(TabulateOn);
void TabulateScales(const QuantizedView& q, std::int64_t nested_block, float* out) {
  HWY_DYNAMIC_DISPATCH(TabulateOn)
  (q.nested.map, q.nested.absmax[nested_block], q.nested.offset, out);
}

HWY_EXPORT(DecodeBlocksOn);
void DecodeBlocks(const DecodeRun& run) { HWY_DYNAMIC_DISPATCH(DecodeBlocksOn)(run); }

}  // namespace qlora
#endif
