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

// 64 columns, in an order of the decoder.
struct GroupValues {
  __m512i first;
  __m512i second;
};

// Decodes 64 columns at a time. A block of 256 values has four such groups; of blocks of 32, two
// are a group:
//   Load(block)    the scales of a block, or of two that follow one another
//   Values(group)  the values of columns 64 * group ... of what was loaded
//   Codes(group)   the same before they are scaled
//   Scales(group)  a scale for each pair of codes, the same for both vectors
//   Mins()         if BlockScales::kHasMins, what is subtracted from every 32 columns: lanes 8 ...
// Functions for the order of values:
//   InOrder(values)  columns 0 ... 31, then 32 ... 63
//   OrderOf(packed)  even columns, then odd ones, as x is packed, in the order of values
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

HWY_INLINE __m128i Load16(const std::byte* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}
HWY_INLINE __m256i Load32(const std::byte* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

// A scale for each pair of 64 columns, of 16 / kLanes scales from kLanes lanes each: those of group
// `group`.
template <int kLanes>
HWY_INLINE __m512 Spread(__m512 scales, int group) {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  constexpr int kShift = kLanes == 8 ? 3 : 2;
  const __m512i from =
      _mm512_add_epi32(_mm512_srli_epi32(lanes, kShift), _mm512_set1_epi32(16 / kLanes * group));
  return _mm512_permutexvar_ps(from, scales);
}

// Words of two vectors: those of the second are numbers 32 ... 63.
struct alignas(64) WordOrder {
  std::uint16_t first[32] = {};
  std::uint16_t second[32] = {};

  // of(i): word i of both, 64 in all.
  template <class Of>
  constexpr explicit WordOrder(const Of& of) {
    for (int i = 0; i < 32; ++i) {
      first[i] = static_cast<std::uint16_t>(of(i));
      second[i] = static_cast<std::uint16_t>(of(32 + i));
    }
  }
};
inline constexpr WordOrder kSideBySide([](int i) { return i % 2 * 32 + i / 2; });
inline constexpr WordOrder kApart([](int i) { return i % 32 * 2 + i / 32; });

HWY_INLINE GroupValues Permuted(const GroupValues& in, const WordOrder& order) {
  return {_mm512_permutex2var_epi16(in.first, _mm512_load_si512(order.first), in.second),
          _mm512_permutex2var_epi16(in.first, _mm512_load_si512(order.second), in.second)};
}
// Word i of one vector, word i of the other, word i + 1 of the first ...
HWY_INLINE GroupValues SideBySide(__m512i a, __m512i b) { return Permuted({a, b}, kSideBySide); }

// Codes of 4 bits are in the even and odd bytes of words: even columns, then odd ones.
struct EvenAndOdd {
  static HWY_INLINE GroupValues InOrder(const GroupValues& values) {
    return Permuted(values, kSideBySide);
  }
  static HWY_INLINE const GroupValues& OrderOf(const GroupValues& packed) { return packed; }
};

// codes * scales, a scale for each pair of codes.
inline constexpr WordOrder kHalves([](int i) { return i % 2 * 16 + i / 2; });
HWY_INLINE __m512i Scaled(__m512i codes, __m512 scales) {
  const auto even = (__m512)_mm512_slli_epi32(codes, 16);
  const auto odd = (__m512)_mm512_and_si512(codes, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
  const auto words =
      (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(odd, scales), _mm512_mul_ps(even, scales));
  return _mm512_permutexvar_epi16(_mm512_load_si512(kHalves.first), words);
}

// What the scales of MXFP4 stand for.
struct Exponents {
  float values[256] = {};

  constexpr Exponents() {
    for (int i = 0; i < 256; ++i) values[i] = HalfOfE8m0(static_cast<std::byte>(i));
  }
};
inline constexpr Exponents kExponents;
HWY_INLINE const float* ExponentAt(const std::byte* at) {
  return kExponents.values + std::to_integer<int>(*at);
}

// Codes become float32 in any case, so that scaling them once serves several rows of x.
template <BlockFormat kFormat>
inline constexpr bool kScalesCodes = kFormat == BlockFormat::kQ8_0;
// Scales of 16 columns and a look-up of 6 bits leave registers for fewer sums.
template <BlockFormat kFormat>
inline constexpr bool kTakesRegisters = kFormat == BlockFormat::kQ6_K;

// The scale of a block of 32 values in all lanes.
template <BlockFormat kFormat>
HWY_INLINE __m512 ScaleOf(const std::byte* block) {
  if constexpr (kFormat == BlockFormat::kMXFP4) return _mm512_set1_ps(*ExponentAt(block));
  return BroadcastHalf(block);
}
// The scales of two blocks, each in half of the lanes.
template <BlockFormat kFormat>
HWY_INLINE __m512 ScalesOfTwo(const std::byte* blocks) {
  constexpr __mmask16 kUpper = 0xff00;
  const std::byte* second = blocks + BlockScales<kFormat>::kBytes;
  if constexpr (kFormat == BlockFormat::kMXFP4) {
    return _mm512_mask_broadcastss_ps(ScaleOf<kFormat>(blocks), kUpper,
                                      _mm_load_ss(ExponentAt(second)));
  } else {
    const __m256i first = _mm256_broadcastw_epi16(_mm_loadu_si16(blocks));
    return _mm512_cvtph_ps(_mm256_mask_broadcastw_epi16(first, kUpper, _mm_loadu_si16(second)));
  }
}

// Looks up the low five bits of words, then those from bit 8 on.
HWY_INLINE GroupValues LookUpBytes(__m512i words, __m512i table) {
  return {_mm512_permutexvar_epi16(words, table),
          _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), table)};
}
// The same with the low four bits, in the half of the table in which the word is.
HWY_INLINE GroupValues LookUpHalves(__m512i words, __m512i table) {
  const __m512i half = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(0x1010), 1);
  // words & 0x0f0f | half
  return LookUpBytes(_mm512_ternarylogic_epi32(words, _mm512_set1_epi16(0x0f0f), half, 0xea),
                     table);
}

// Blocks of a scale and 16 bytes: the low nibbles are values 0 ... 15, the high ones 16 ... 31.
template <BlockFormat kFormat>
class FlatNibbles : public EvenAndOdd {
 public:
  HWY_INLINE void Load(const std::byte* blocks) { blocks_ = blocks; }
  HWY_INLINE GroupValues Values(int /*group*/) const {
    const __m512 codes = _mm512_load_ps(kCodes.values);
    const auto scaled = [&](int block) __attribute__((always_inline)) {
      return _mm512_mul_ps(codes, ScaleOf<kFormat>(blocks_ + block * Layout::kBytes));
    };
    return LookUpHalves(Words(), (__m512i)_mm512_cvtne2ps_pbh(scaled(1), scaled(0)));
  }
  HWY_INLINE GroupValues Codes(int /*group*/) const {
    return LookUpBytes(Words(), _mm512_load_si512(kCodes.twice));
  }
  HWY_INLINE __m512 Scales(int /*group*/) const { return ScalesOfTwo<kFormat>(blocks_); }

 private:
  using Layout = BlockScales<kFormat>;
  static constexpr const CodeValues& kCodes = kFormat == BlockFormat::kQ4_0     ? kQ4Codes
                                              : kFormat == BlockFormat::kIQ4_NL ? kIq4Codes
                                                                                : kE2m1Codes;

  // 128 bits after 128 bits: the low nibbles of the first block, its high ones, the second block.
  HWY_INLINE __m512i Words() const {
    const std::byte* codes = blocks_ + Layout::kCodes;
    const __m512i first = _mm512_broadcast_i32x4(Load16(codes));
    const __m512i both = _mm512_mask_broadcast_i32x4(first, 0xff00, Load16(codes + Layout::kBytes));
    return _mm512_srlv_epi16(both, _mm512_set_epi64(kFours, kFours, 0, 0, kFours, kFours, 0, 0));
  }
  static constexpr long long kFours = 0x0004000400040004;

  const std::byte* blocks_;
};
template <>
class BlockDecoder<BlockFormat::kQ4_0> : public FlatNibbles<BlockFormat::kQ4_0> {};
template <>
class BlockDecoder<BlockFormat::kIQ4_NL> : public FlatNibbles<BlockFormat::kIQ4_NL> {};
template <>
class BlockDecoder<BlockFormat::kMXFP4> : public FlatNibbles<BlockFormat::kMXFP4> {};

// The low nibbles of 32 bytes are 32 values, the high ones the next.
template <>
class BlockDecoder<BlockFormat::kQ4_K> : public EvenAndOdd {
 public:
  HWY_INLINE void Load(const std::byte* block) {
    codes_ = block + BlockScales<BlockFormat::kQ4_K>::kCodes;
    // d for eight scales, d_min for eight minima.
    const __m128 units = _mm_cvtph_ps(_mm_cvtsi32_si128(LoadAt<int>(block)));
    const __m512 unit = Spread<8>(_mm512_castps128_ps512(units), 0);
    const __m512 integers = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(UnpackSubScales(block + 4)));
    scales_ = _mm512_mul_ps(integers, unit);
  }
  HWY_INLINE GroupValues Values(int group) const {
    const auto values = [&](int part) __attribute__((always_inline)) {
      const auto all = [&](int lane) __attribute__((always_inline)) {
        return _mm512_permutexvar_ps(_mm512_set1_epi32(lane), scales_);
      };
      return _mm512_sub_ps(_mm512_mul_ps(_mm512_load_ps(kPlainCodes.values), all(part)),
                           all(8 + part));
    };
    return LookUpHalves(Words(group),
                        (__m512i)_mm512_cvtne2ps_pbh(values(2 * group + 1), values(2 * group)));
  }
  HWY_INLINE GroupValues Codes(int group) const {
    return LookUpBytes(Words(group), _mm512_load_si512(kPlainCodes.twice));
  }
  HWY_INLINE __m512 Scales(int group) const { return Spread<8>(scales_, group); }
  HWY_INLINE __m512 Mins() const { return scales_; }

 private:
  HWY_INLINE __m512i Words(int group) const {
    return _mm512_srlv_epi16(_mm512_broadcast_i64x4(Load32(codes_ + 32 * group)),
                             _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1));
  }
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
  __m512 scales_;  // and minima
};

// Half of both blocks, then the other halves.
inline constexpr WordOrder kHalfBlocks([](int i) {
  const int column = i % 16 + i / 16 % 2 * 32 + i / 32 * 16;
  return column % 2 * 32 + column / 2;
});
template <>
class BlockDecoder<BlockFormat::kQ8_0> {
 public:
  HWY_INLINE void Load(const std::byte* blocks) { blocks_ = blocks; }
  HWY_INLINE GroupValues Values(int /*group*/) const {
    const __m512 first = BroadcastHalf(blocks_);
    const __m512 second = BroadcastHalf(blocks_ + Layout::kBytes);
    const auto half = [&](int i) __attribute__((always_inline)) {
      return (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(Floats(1, i), second),
                                          _mm512_mul_ps(Floats(0, i), first));
    };
    return {half(0), half(1)};
  }
  HWY_INLINE GroupValues Codes(int /*group*/) const {
    return {(__m512i)_mm512_cvtne2ps_pbh(Floats(1, 0), Floats(0, 0)),
            (__m512i)_mm512_cvtne2ps_pbh(Floats(1, 1), Floats(0, 1))};
  }
  HWY_INLINE __m512 Scales(int /*group*/) const { return ScalesOfTwo<BlockFormat::kQ8_0>(blocks_); }

  static HWY_INLINE GroupValues InOrder(const GroupValues& values) {
    return {_mm512_shuffle_i64x2(values.first, values.second, 0x44),
            _mm512_shuffle_i64x2(values.first, values.second, 0xee)};
  }
  static HWY_INLINE GroupValues OrderOf(const GroupValues& packed) {
    return Permuted(packed, kHalfBlocks);
  }

 private:
  using Layout = BlockScales<BlockFormat::kQ8_0>;
  HWY_INLINE __m512 Floats(int block, int half) const {
    const std::byte* codes = blocks_ + block * Layout::kBytes + Layout::kCodes;
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(Load16(codes + 16 * half)));
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
class BlockDecoder<BlockFormat::kQ6_K> : public EvenAndOdd {
 public:
  HWY_INLINE void Load(const std::byte* block) {
    block_ = block;
    const __m512 integers = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(Load16(block + 192)));
    scales_ = _mm512_mul_ps(integers, BroadcastHalf(block + 208));
  }
  HWY_INLINE GroupValues Values(int group) const {
    const __m512 scales = Scales(group);
    const auto [even, odd] = Codes(group);
    return {Scaled(even, scales), Scaled(odd, scales)};
  }
  HWY_INLINE GroupValues Codes(int group) const {
    const __m512i nibbles = _mm512_loadu_si512(block_ + group / 2 * 64);
    const __m512i bits =
        _mm512_srlv_epi16(_mm512_broadcast_i64x4(Load32(block_ + 128 + group / 2 * 32)),
                          _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(2), 1));
    if (group % 2 == 0) {
      return {LookUp(nibbles, _mm512_slli_epi16(bits, 4)),
              LookUp(_mm512_srli_epi16(nibbles, 8), _mm512_srli_epi16(bits, 4))};
    }
    return {LookUp(_mm512_srli_epi16(nibbles, 4), bits),
            LookUp(_mm512_srli_epi16(nibbles, 12), _mm512_srli_epi16(bits, 8))};
  }
  HWY_INLINE __m512 Scales(int group) const { return Spread<4>(scales_, group); }

 private:
  // The values of bits 0 ... 3 of `low` and bits 4 and 5 of `high`.
  static HWY_INLINE __m512i LookUp(__m512i low, __m512i high) {
    // 0x0f & low | ~0x0f & high
    const __m512i index = _mm512_ternarylogic_epi32(_mm512_set1_epi16(0x0f), low, high, 0xca);
    return _mm512_permutex2var_epi16(_mm512_load_si512(kSixBits.values), index,
                                     _mm512_load_si512(kSixBits.values + 32));
  }

  const std::byte* block_;
  __m512 scales_;
};

}  // namespace qlora::cpu::bf16
HWY_POP_ATTRIBUTES

#endif  // QLORA_BACKEND_CPU_X86_BF16_BLOCK_VALUES_INL_H_
