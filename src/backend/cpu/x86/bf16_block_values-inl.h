// How ggml's blocks become bfloat16: everything that the kernels of pairs know of these formats.
// Values are computed in float32 as ggml's decoders compute them, and rounded once. Codes, the
// whole numbers that are scaled, need no rounding.
#ifndef QLORA_BACKEND_CPU_X86_BF16_BLOCK_VALUES_INL_H_
#define QLORA_BACKEND_CPU_X86_BF16_BLOCK_VALUES_INL_H_

#include "backend/cpu/gemm/block_scales.h"
#include "backend/cpu/x86/avx512-inl.h"
#include "ggml/codebooks.h"

HWY_PUSH_ATTRIBUTES(QLORA_AVX512 ",avx512bf16")

namespace qlora::cpu::bf16 {

// 64 columns, in order.
struct GroupValues {
  __m512i first;
  __m512i second;
};

// Decodes 64 columns at a time. A block of 256 values has four such groups; of blocks of 32, two
// are a group:
//   Load(block)    the scales of a block, or of two that follow one another
//   Values(group)  the values of columns 64 * group ... of what was loaded
//   Codes(group)   the same before they are scaled
//   Scale(part)    a scale for each pair of the 32 columns from 32 * part on
//   Min(part)      what is subtracted from these, if BlockScales::kHasMins
template <BlockFormat kFormat>
class BlockDecoder;

constexpr std::uint16_t UpperHalf(float value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}

// What 16 codes of 4 bits stand for; in bfloat16 twice, because vpermw reads five bits of an index,
// and bit 4 may be stray.
struct alignas(64) CodeValues {
  float values[16] = {};
  std::uint16_t twice[32] = {};

  constexpr explicit CodeValues(const Codebook& book) {
    for (int i = 0; i < 32; ++i) {
      values[i % 16] = book[i % 16];
      twice[i] = UpperHalf(values[i % 16]);
    }
  }
};
inline constexpr CodeValues kPlainCodes({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
inline constexpr CodeValues kQ4Codes({-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7});
inline constexpr CodeValues kIq4Codes(kIq4Values);
inline constexpr CodeValues kE2m1Codes(kE2m1Values);

HWY_INLINE __m512 BroadcastHalf(const std::byte* at) {
  return _mm512_cvtph_ps(_mm256_set1_epi16(LoadAt<short>(at)));
}

// 32 bytes as words.
HWY_INLINE __m512i LoadWords(const std::byte* at) {
  return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

// Blocks of a scale and 16 bytes: the low nibbles are values 0 ... 15, the high ones 16 ... 31. One
// table has the values of two blocks; bit 4 of an index says of which.
template <BlockFormat kFormat>
class FlatNibbles {
 public:
  HWY_INLINE void Load(const std::byte* blocks) { blocks_ = blocks; }
  HWY_INLINE GroupValues Values(int /*group*/) const {
    const __m512 codes = _mm512_load_ps(kCodes.values);
    const auto table = (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(codes, Scale(1)),
                                                    _mm512_mul_ps(codes, Scale(0)));
    // The upper bits of words differ: x & 0x0f, x & 0x0f | 0x10.
    const __m512i second = _mm512_ternarylogic_epi32(
        Nibbles(blocks_ + Scales::kBytes), _mm512_set1_epi16(0x0f), _mm512_set1_epi16(0x10), 0xea);
    return {_mm512_permutexvar_epi16(_mm512_and_si512(Nibbles(blocks_), _mm512_set1_epi16(0x0f)),
                                     table),
            _mm512_permutexvar_epi16(second, table)};
  }
  HWY_INLINE GroupValues Codes(int /*group*/) const {
    const __m512i table = _mm512_load_si512(kCodes.twice);
    return {_mm512_permutexvar_epi16(Nibbles(blocks_), table),
            _mm512_permutexvar_epi16(Nibbles(blocks_ + Scales::kBytes), table)};
  }
  HWY_INLINE __m512 Scale(int part) const { return ScaleOf(blocks_ + part * Scales::kBytes); }

 private:
  using Scales = BlockScales<kFormat>;
  static constexpr const CodeValues& kCodes = kFormat == BlockFormat::kQ4_0     ? kQ4Codes
                                              : kFormat == BlockFormat::kIQ4_NL ? kIq4Codes
                                                                                : kE2m1Codes;

  static HWY_INLINE __m512 ScaleOf(const std::byte* block) {
    if constexpr (kFormat == BlockFormat::kMXFP4) return _mm512_set1_ps(HalfOfE8m0(block[0]));
    return BroadcastHalf(block);
  }
  // Nibbles in the order of columns, in the low bits of 32 words.
  static HWY_INLINE __m512i Nibbles(const std::byte* block) {
    const auto* codes = reinterpret_cast<const __m128i*>(block + Scales::kCodes);
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(codes));
    // Each 128 bits take eight bytes as words.
    const __m512i low = _mm512_set_epi64(0x0f0f0e0e0d0d0c0c, 0x0b0b0a0a09090808, 0x0707060605050404,
                                         0x0303020201010000, 0x0f0f0e0e0d0d0c0c, 0x0b0b0a0a09090808,
                                         0x0707060605050404, 0x0303020201010000);
    const __m512i shifts = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
    return _mm512_srlv_epi16(_mm512_shuffle_epi8(bytes, low), shifts);
  }

  const std::byte* blocks_;
};
template <>
class BlockDecoder<BlockFormat::kQ4_0> : public FlatNibbles<BlockFormat::kQ4_0> {};
template <>
class BlockDecoder<BlockFormat::kIQ4_NL> : public FlatNibbles<BlockFormat::kIQ4_NL> {};
template <>
class BlockDecoder<BlockFormat::kMXFP4> : public FlatNibbles<BlockFormat::kMXFP4> {};

// The low nibbles of 32 bytes are 32 values, the high ones the next. One table has both.
template <>
class BlockDecoder<BlockFormat::kQ4_K> {
 public:
  HWY_INLINE void Load(const std::byte* block) {
    codes_ = block + BlockScales<BlockFormat::kQ4_K>::kCodes;
    // d for eight scales, d_min for eight minima.
    const __m128 units = _mm_cvtph_ps(_mm_cvtsi32_si128(LoadAt<int>(block)));
    const __m512 unit =
        _mm512_mask_broadcastss_ps(_mm512_broadcastss_ps(units), 0xff00, _mm_movehdup_ps(units));
    const __m512 integers = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(UnpackSubScales(block + 4)));
    _mm512_store_ps(scales_, _mm512_mul_ps(integers, unit));
  }
  HWY_INLINE GroupValues Values(int group) const {
    const auto values = [&](int part) __attribute__((always_inline)) {
      const __m512 codes = _mm512_load_ps(kPlainCodes.values);
      return _mm512_sub_ps(_mm512_mul_ps(codes, Scale(part)), Min(part));
    };
    const auto table = (__m512i)_mm512_cvtne2ps_pbh(values(2 * group + 1), values(2 * group));
    const __m512i words = LoadWords(codes_ + 32 * group);
    return {_mm512_permutexvar_epi16(_mm512_and_si512(words, _mm512_set1_epi16(0x0f)), table),
            _mm512_permutexvar_epi16(
                _mm512_or_si512(_mm512_srli_epi16(words, 4), _mm512_set1_epi16(0x10)), table)};
  }
  HWY_INLINE GroupValues Codes(int group) const {
    const __m512i table = _mm512_load_si512(kPlainCodes.twice);
    const __m512i words = LoadWords(codes_ + 32 * group);
    return {_mm512_permutexvar_epi16(words, table),
            _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), table)};
  }
  HWY_INLINE __m512 Scale(int part) const { return _mm512_set1_ps(scales_[part]); }
  HWY_INLINE __m512 Min(int part) const { return _mm512_set1_ps(scales_[8 + part]); }

 private:
  // As UnpackScalesAndMins: eight scales, then eight minima.
  static HWY_INLINE __m128i UnpackSubScales(const std::byte* bytes) {
    constexpr int kSix = 0x3f3f3f3f;
    constexpr int kFour = 0x0f0f0f0f;
    constexpr int kTop = 0x30303030;
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    const __m128i high =
        _mm_srlv_epi32(_mm_shuffle_epi32(all, _MM_SHUFFLE(1, 1, 0, 0)), _mm_setr_epi32(0, 2, 0, 2));
    const __m128i low =
        _mm_srlv_epi32(_mm_shuffle_epi32(all, _MM_SHUFFLE(2, 2, 2, 2)), _mm_setr_epi32(0, 0, 0, 4));
    return _mm_or_si128(_mm_and_si128(high, _mm_setr_epi32(kSix, kTop, kSix, kTop)),
                        _mm_and_si128(low, _mm_setr_epi32(0, kFour, 0, kFour)));
  }

  const std::byte* codes_;
  alignas(64) float scales_[16];  // and minima
};

// 32 signed bytes as float32.
struct ByteValues {
  __m512 low;
  __m512 high;

  HWY_INLINE explicit ByteValues(__m256i bytes)
      : low(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes)))),
        high(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1)))) {}

  HWY_INLINE __m512i Rounded() const { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }
  HWY_INLINE __m512i Rounded(__m512 low_scale, __m512 high_scale) const {
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(high, high_scale),
                                        _mm512_mul_ps(low, low_scale));
  }
};
HWY_INLINE __m256i Load32(const std::byte* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

template <>
class BlockDecoder<BlockFormat::kQ8_0> {
 public:
  HWY_INLINE void Load(const std::byte* blocks) { blocks_ = blocks; }
  HWY_INLINE GroupValues Values(int /*group*/) const {
    return {Bytes(0).Rounded(Scale(0), Scale(0)), Bytes(1).Rounded(Scale(1), Scale(1))};
  }
  HWY_INLINE GroupValues Codes(int /*group*/) const {
    return {Bytes(0).Rounded(), Bytes(1).Rounded()};
  }
  HWY_INLINE __m512 Scale(int part) const { return BroadcastHalf(blocks_ + part * Scales::kBytes); }

 private:
  using Scales = BlockScales<BlockFormat::kQ8_0>;
  HWY_INLINE ByteValues Bytes(int part) const {
    return ByteValues(Load32(blocks_ + part * Scales::kBytes + Scales::kCodes));
  }

  const std::byte* blocks_;
};

// What codes of 6 bits stand for.
struct alignas(64) SixBits {
  std::uint16_t values[64] = {};

  constexpr SixBits() {
    for (int i = 0; i < 64; ++i) values[i] = UpperHalf(static_cast<float>(i - 32));
  }
};
inline constexpr SixBits kSixBits;

// Of each half of 128 values: nibbles of 64 bytes, the low ones first; two bits of 32 bytes.
template <>
class BlockDecoder<BlockFormat::kQ6_K> {
 public:
  HWY_INLINE void Load(const std::byte* block) {
    block_ = block;
    const auto* scales = reinterpret_cast<const __m128i*>(block + 192);
    const __m512 integers = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(scales)));
    _mm512_store_ps(scales_, _mm512_mul_ps(integers, BroadcastHalf(block + 208)));
  }
  HWY_INLINE GroupValues Values(int group) const {
    const auto values = [&](int part) __attribute__((always_inline)) {
      const __m256i bytes = _mm256_sub_epi8(Sixes(part), _mm256_set1_epi8(32));
      return ByteValues(bytes).Rounded(_mm512_set1_ps(scales_[2 * part]),
                                       _mm512_set1_ps(scales_[2 * part + 1]));
    };
    return {values(2 * group), values(2 * group + 1)};
  }
  HWY_INLINE GroupValues Codes(int group) const {
    const auto codes = [&](int part) __attribute__((always_inline)) {
      return _mm512_permutex2var_epi16(_mm512_load_si512(kSixBits.values),
                                       _mm512_cvtepu8_epi16(Sixes(part)),
                                       _mm512_load_si512(kSixBits.values + 32));
    };
    return {codes(2 * group), codes(2 * group + 1)};
  }
  HWY_INLINE __m512 Scale(int part) const {
    return _mm512_mask_broadcastss_ps(_mm512_set1_ps(scales_[2 * part]), 0xff00,
                                      _mm_load_ss(scales_ + 2 * part + 1));
  }

 private:
  // Codes of 32 columns, in bytes.
  HWY_INLINE __m256i Sixes(int part) const {
    const int row = part % 4;
    const __m256i nibbles = Load32(block_ + part / 4 * 64 + row % 2 * 32);
    const __m256i bits = Load32(block_ + 128 + part / 4 * 32);
    const __m256i low = row < 2 ? nibbles : _mm256_srli_epi16(nibbles, 4);
    const __m256i high = row == 0   ? _mm256_slli_epi16(bits, 4)
                         : row == 1 ? _mm256_slli_epi16(bits, 2)
                         : row == 2 ? bits
                                    : _mm256_srli_epi16(bits, 2);
    // 0x0f & low | high & 0x30
    return _mm256_ternarylogic_epi32(_mm256_set1_epi8(0x0f), low,
                                     _mm256_and_si256(high, _mm256_set1_epi8(0x30)), 0xea);
  }

  const std::byte* block_;
  alignas(64) float scales_[16];
};

}  // namespace qlora::cpu::bf16
HWY_POP_ATTRIBUTES

#endif  // QLORA_BACKEND_CPU_X86_BF16_BLOCK_VALUES_INL_H_
