// How 4-bit values become float32 lanes: everything that the float32 kernels know of the format of
// a weight. Included once per target.
#if defined(QLORA_BACKEND_CPU_GEMM_F32_FORMAT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_BACKEND_CPU_GEMM_F32_FORMAT_INL_H_
#undef QLORA_BACKEND_CPU_GEMM_F32_FORMAT_INL_H_
#else
#define QLORA_BACKEND_CPU_GEMM_F32_FORMAT_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "backend/cpu/gemm/f32_pack-inl.h"
#include "backend/cpu/gemm/format.h"
#include "backend/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

using WordTag = hn::RebindToUnsigned<FloatTag>;

// ---- In the order of columns: the 16 values of a block, code * scale, are looked up by nibbles. A
// byte begins with its upper half. Decode(packed, out) decodes kDecoded consecutive values.
inline constexpr std::int64_t kDecoded = HWY_TARGET == HWY_NEON ? 16 : 2 * kLanes;

#if HWY_TARGET == HWY_AVX3
template <bool kRound>
class BlockDecoder {
 public:
  HWY_INLINE BlockDecoder(const float* code, float scale) {
    const FloatTag d;
    values_ = Operand<kRound>(d, hn::Mul(hn::LoadU(d, code), hn::Set(d, scale)));
  }

  // 8 values of a word of 32 bits in each half of a vector, shifted so that the lowest four bits of
  // each lane are its nibble: vpermps reads no others.
  HWY_INLINE void Decode(const std::uint8_t* packed, float* out) const {
    const FloatTag d;
    const __m256i word = _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24);
    const __m512i shifts = _mm512_broadcast_i64x4(word);
    for (int i = 0; i < 2; ++i, packed += 8, out += kLanes) {
      const __m512i words = _mm512_mask_broadcastd_epi32(
          _mm512_broadcastd_epi32(_mm_loadu_si32(packed)), 0xff00, _mm_loadu_si32(packed + 4));
      const auto values = _mm512_permutexvar_ps(_mm512_srlv_epi32(words, shifts), values_.raw);
      hn::StoreU(hn::Vec<FloatTag>{values}, d, out);
    }
  }

 private:
  hn::Vec<FloatTag> values_;
};
#elif HWY_TARGET == HWY_NEON
// Byte b of all values is a table, because a shuffle of bytes looks up 16 entries. Interleaved, the
// bytes are values again.
template <bool kRound>
class BlockDecoder {
 public:
  HWY_INLINE BlockDecoder(const float* code, float scale) {
    const FloatTag d;
    HWY_ALIGN float values[16];
    for (std::int64_t i = 0; i < 16; i += kLanes) {
      const auto value = hn::Mul(hn::LoadU(d, code + i), hn::Set(d, scale));
      hn::Store(Operand<kRound>(d, value), d, values + i);
    }
    hn::LoadInterleaved4(ByteTag(), reinterpret_cast<const std::uint8_t*>(values), bytes_[0],
                         bytes_[1], bytes_[2], bytes_[3]);
  }

  HWY_INLINE void Decode(const std::uint8_t* packed, float* out) const {
    const ByteTag d8;
    const auto half = hn::LoadU(hn::Half<ByteTag>(), packed);
    const auto pairs = hn::Combine(d8, half, half);
    const auto index =
        hn::InterleaveLower(d8, hn::ShiftRight<4>(pairs), hn::And(pairs, hn::Set(d8, 15)));
    hn::StoreInterleaved4(
        hn::TableLookupBytes(bytes_[0], index), hn::TableLookupBytes(bytes_[1], index),
        hn::TableLookupBytes(bytes_[2], index), hn::TableLookupBytes(bytes_[3], index), d8,
        reinterpret_cast<std::uint8_t*>(out));
  }

 private:
  using ByteTag = hn::Repartition<std::uint8_t, WordTag>;
  hn::Vec<ByteTag> bytes_[4];
};
#else
template <bool kRound>
class BlockDecoder {
 public:
  HWY_INLINE BlockDecoder(const float* code, float scale) {
    ForEachVector(16, [&](auto tag, std::int64_t i) HWY_ATTR {
      const auto value = hn::Mul(hn::LoadU(tag, code + i), hn::Set(tag, scale));
      hn::StoreU(Operand<kRound>(tag, value), tag, values_ + i);
    });
  }

  HWY_INLINE void Decode(const std::uint8_t* packed, float* out) const {
    const WordTag d32;
    const hn::Rebind<std::uint8_t, FloatTag> d8;
    const auto bytes = hn::PromoteTo(d32, hn::LoadU(d8, packed));
    const auto even = Lookup(hn::ShiftRight<4>(bytes));
    const auto odd = Lookup(hn::And(bytes, hn::Set(d32, 15)));
#if HWY_TARGET == HWY_SCALAR
    out[0] = hn::GetLane(even);
    out[1] = hn::GetLane(odd);
#else
    hn::StoreInterleaved2(even, odd, FloatTag(), out);
#endif
  }

 private:
  // index: lanes in [0, 16).
  HWY_INLINE hn::Vec<FloatTag> Lookup(hn::Vec<WordTag> index) const {
    const FloatTag d;
#if HWY_TARGET == HWY_AVX2
    // A table of lanes has 8 entries: bit 3 of the index says which of two tables counts.
    const WordTag d32;
    const auto low = hn::IndicesFromVec(d, hn::And(index, hn::Set(d32, 7)));
    return hn::IfThenElse(hn::RebindMask(d, hn::TestBit(index, hn::Set(d32, 8))),
                          hn::TableLookupLanes(hn::Load(d, values_ + 8), low),
                          hn::TableLookupLanes(hn::Load(d, values_), low));
#else
    return hn::GatherIndex(d, values_, hn::BitCast(hn::RebindToSigned<FloatTag>(), index));
#endif
  }

  HWY_ALIGN float values_[16];
};
#endif

// Decodes a chunk; values i ... i + kDecoded - 1 are written to place(i).
template <bool kRound, class Place>
HWY_INLINE void DecodeChunk(const QuantizedChunks& in, std::int64_t row, std::int64_t chunk,
                            const Place& place) {
  const BlockDecoder<kRound> block(in.code, in.scales.At(row, chunk));
  const std::uint8_t* packed = in.At(row, chunk);
  for (std::int64_t i = 0; i < kChunk; i += kDecoded) block.Decode(packed + i / 2, place(i));
}

// ---- In the order of words, which is faster: for dot products, whose x is packed in this order.

// A vector of words of 32 bits holds 8 columns of a row in each, decoded in halves of four vectors.
inline constexpr std::int64_t kWordNibbles = 8;
inline constexpr std::int64_t kHalfVectors = kWordNibbles / 2;
inline constexpr std::int64_t kVectorColumns = kLanes * kWordNibbles;

// The 16 values of a code, not scaled, looked up by nibbles. ColumnOf(vector, lane) is the column
// of a decoded value, counted from the first one of the vector of words.
class WordDecoder {
 public:
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_SCALAR
  HWY_INLINE explicit WordDecoder(const float* code) { std::copy(code, code + 16, values_); }

  // Nibble n of word j is column 8 j + n ^ 1, because a byte begins with its upper half.
  static std::int64_t ColumnOf(std::int64_t vector, std::int64_t lane) {
    return kWordNibbles * lane + (vector ^ 1);
  }
  HWY_INLINE void Decode(hn::Vec<WordTag> words, int half,
                         hn::Vec<FloatTag> (&values)[kHalfVectors]) const {
#pragma GCC unroll 4
    for (int i = 0; i < kHalfVectors; ++i) {
      const int shift = 4 * (half * static_cast<int>(kHalfVectors) + i);
#if HWY_TARGET == HWY_AVX3
      // Reads the lowest four bits of each word.
      values[i] = hn::Vec<FloatTag>{_mm512_permutexvar_ps(
          _mm512_srli_epi32(words.raw, static_cast<unsigned>(shift)), _mm512_load_ps(values_))};
#else
      values[i] = hn::Set(FloatTag(), values_[hn::GetLane(words) >> shift & 15]);
#endif
    }
  }

 private:
  HWY_ALIGN float values_[16];
#else
  // Four tables of bytes, because a shuffle of bytes looks up 16 entries and one of words only 8.
  // Interleaving the four bytes of a value undoes the split:
  //   byte 0 of 16 values  \ interleaved bytes:   low half   \ interleaved halves:
  //   byte 1 of 16 values  /                                   4 vectors of 4 values per 128 bits
  //   bytes 2 and 3 likewise                      high half  /
  HWY_INLINE explicit WordDecoder(const float* code) {
    HWY_ALIGN std::uint8_t bytes[4][16];
    for (int i = 0; i < 16; ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, code + i, sizeof bits);
      for (int b = 0; b < 4; ++b) bytes[b][i] = static_cast<std::uint8_t>(bits >> (8 * b));
    }
    for (int b = 0; b < 4; ++b) bytes_[b] = hn::LoadDup128(ByteTag(), bytes[b]);
  }

  // Byte i is in half 0 with its upper nibble, which is column 2 i, and in half 1 with its lower.
  static std::int64_t ColumnOf(std::int64_t vector, std::int64_t lane) {
    const std::int64_t byte = lane / 4 * 16 + vector % kHalfVectors * 4 + lane % 4;
    return 2 * byte + vector / kHalfVectors;
  }
  HWY_INLINE void Decode(hn::Vec<WordTag> words, int half,
                         hn::Vec<FloatTag> (&values)[kHalfVectors]) const {
    const FloatTag d;
    const ByteTag d8;
    const hn::Repartition<std::uint16_t, WordTag> d16;
    const auto nibbles = half == 0 ? hn::ShiftRight<4>(words) : words;
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
  using ByteTag = hn::Repartition<std::uint8_t, WordTag>;
  hn::Vec<ByteTag> bytes_[4];
#endif
};

// kLanes words, or as many as there are and zeros.
HWY_INLINE hn::Vec<WordTag> LoadWords(const std::uint8_t* packed, std::int64_t words) {
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

#endif  // QLORA_BACKEND_CPU_GEMM_F32_FORMAT_INL_H_
