// The 4-bit values of a row, looked up in registers by vectors of words; in float32. Included once
// per target.
#if defined(QLORA_BACKEND_CPU_F32_NIBBLES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_BACKEND_CPU_F32_NIBBLES_INL_H_
#undef QLORA_BACKEND_CPU_F32_NIBBLES_INL_H_
#else
#define QLORA_BACKEND_CPU_F32_NIBBLES_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backend/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

// A vector of words of 32 bits holds 8 columns of a row in each, decoded in halves of four vectors.
inline constexpr std::size_t kWordNibbles = 8;
inline constexpr std::size_t kHalfVectors = kWordNibbles / 2;
inline constexpr std::size_t kVectorColumns = kLanes * kWordNibbles;
using WordTag = hn::RebindToUnsigned<FloatTag>;

// The 16 values of a code in registers, looked up by nibbles.
class NibbleTable {
 public:
#if HWY_TARGET == HWY_AVX2
  // Four tables of bytes, because a shuffle of bytes looks up 16 entries and one of words only 8.
  HWY_INLINE explicit NibbleTable(const float* code) {
    const hn::Repartition<std::uint8_t, WordTag> d8;
    const hn::Half<decltype(d8)> lane;
    HWY_ALIGN std::uint8_t bytes[4][16];
    for (std::size_t i = 0; i < 16; ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, code + i, sizeof bits);
      for (int b = 0; b < 4; ++b) bytes[b][i] = static_cast<std::uint8_t>(bits >> (8 * b));
    }
    for (std::size_t b = 0; b < 4; ++b) {
      const auto table = hn::Load(lane, bytes[b]);
      bytes_[b] = hn::Combine(d8, table, table);
    }
  }

  // Byte i is in half 0 with its upper nibble, which is column 2 i, and in half 1 with its lower.
  static std::size_t ColumnOf(std::size_t vector, std::size_t lane) {
    const std::size_t byte = lane / 4 * 16 + vector % kHalfVectors * 4 + lane % 4;
    return 2 * byte + vector / kHalfVectors;
  }
  HWY_INLINE void Decode(hn::Vec<WordTag> codes, std::size_t half,
                         hn::Vec<FloatTag> (&values)[kHalfVectors]) const {
    const FloatTag d;
    const hn::Repartition<std::uint8_t, WordTag> d8;
    const hn::Repartition<std::uint16_t, WordTag> d16;
    const auto nibbles = half == 0 ? hn::ShiftRight<4>(codes) : codes;
    const auto index = hn::And(hn::BitCast(d8, nibbles), hn::Set(d8, 15));
    const auto byte0 = hn::TableLookupBytes(bytes_[0], index);
    const auto byte1 = hn::TableLookupBytes(bytes_[1], index);
    const auto byte2 = hn::TableLookupBytes(bytes_[2], index);
    const auto byte3 = hn::TableLookupBytes(bytes_[3], index);
    const auto low0 = hn::BitCast(d16, hn::InterleaveLower(d8, byte0, byte1));
    const auto high0 = hn::BitCast(d16, hn::InterleaveLower(d8, byte2, byte3));
    const auto low1 = hn::BitCast(d16, hn::InterleaveUpper(d8, byte0, byte1));
    const auto high1 = hn::BitCast(d16, hn::InterleaveUpper(d8, byte2, byte3));
    values[0] = hn::BitCast(d, hn::InterleaveLower(d16, low0, high0));
    values[1] = hn::BitCast(d, hn::InterleaveUpper(d16, low0, high0));
    values[2] = hn::BitCast(d, hn::InterleaveLower(d16, low1, high1));
    values[3] = hn::BitCast(d, hn::InterleaveUpper(d16, low1, high1));
  }

 private:
  hn::Vec<hn::Repartition<std::uint8_t, WordTag>> bytes_[4];
#else
  static_assert(kLanes == 1 || HWY_TARGET == HWY_AVX3);
  HWY_INLINE explicit NibbleTable(const float* code) { std::copy(code, code + 16, values_); }

  // Nibble n of word j is column 8 j + n ^ 1, because a byte begins with its upper half.
  static std::size_t ColumnOf(std::size_t vector, std::size_t lane) {
    return kWordNibbles * lane + (vector ^ 1);
  }
  HWY_INLINE void Decode(hn::Vec<WordTag> codes, std::size_t half,
                         hn::Vec<FloatTag> (&values)[kHalfVectors]) const {
#pragma GCC unroll 4
    for (std::size_t i = 0; i < kHalfVectors; ++i) {
      const int shift = static_cast<int>(4 * (half * kHalfVectors + i));
#if HWY_TARGET == HWY_AVX3
      // Reads the lowest four bits of each word.
      values[i] = hn::Vec<FloatTag>{_mm512_permutexvar_ps(
          _mm512_srli_epi32(codes.raw, static_cast<unsigned>(shift)), _mm512_load_ps(values_))};
#else
      values[i] = hn::Set(FloatTag(), values_[hn::GetLane(codes) >> shift & 15]);
#endif
    }
  }

 private:
  HWY_ALIGN float values_[16];
#endif
};

// kLanes words, or as many as there are and zeros.
HWY_INLINE hn::Vec<WordTag> LoadWords(const std::uint8_t* packed, std::size_t words) {
  const WordTag d;
  if (kLanes > 1 && words >= kLanes) {
    return hn::LoadU(d, reinterpret_cast<const std::uint32_t*>(packed));
  }
  HWY_ALIGN std::uint32_t some[kLanes] = {};
  std::memcpy(some, packed, std::min(words, kLanes) * sizeof(std::uint32_t));
  return hn::Load(d, some);
}

}  // namespace
}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QLORA_BACKEND_CPU_F32_NIBBLES_INL_H_
