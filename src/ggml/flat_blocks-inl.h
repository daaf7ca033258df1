// Decoders of the formats with one level of scales. Included once per target.
#if defined(QLORA_GGML_FLAT_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_GGML_FLAT_BLOCKS_INL_H_
#undef QLORA_GGML_FLAT_BLOCKS_INL_H_
#else
#define QLORA_GGML_FLAT_BLOCKS_INL_H_
#endif

#include <bit>

#include "ggml/nibbles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::HWY_NAMESPACE {

// Q4_0: f16 d, 16 bytes of nibbles. value = (code - 8) * d
inline void DecodeQ4_0(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  const float d = HalfAt(block);
  ForNibbles<16>(block + 2, [&](int first, const std::uint8_t* codes) {
    for (int i = 0; i < 16; ++i) values[first + i] = static_cast<float>(codes[i] - 8) * d;
  });
}

// Q4_1: f16 d, f16 m, 16 bytes of nibbles. value = code * d + m
inline void DecodeQ4_1(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  const float d = HalfAt(block);
  const float m = HalfAt(block + 2);
  ForNibbles<16>(block + 4, [&](int first, const std::uint8_t* codes) {
    for (int i = 0; i < 16; ++i) values[first + i] = static_cast<float>(codes[i]) * d + m;
  });
}

// Calls put(place, code) for codes of 5 bits: bit i of a u32 is the highest bit of code i; then 16
// bytes of nibbles.
template <class Put>
HWY_INLINE void ForFiveBits(const std::byte* HWY_RESTRICT packed, const Put& put) {
  const auto top = LoadAt<std::uint32_t>(packed);
  ForNibbles<16>(packed + 4, [&](int first, const std::uint8_t* codes) {
    const std::uint32_t half = top >> first;
    for (int i = 0; i < 16; ++i) {
      put(first + i, codes[i] | static_cast<int>(half >> i & 1) << 4);
    }
  });
}

// Q5_0: f16 d, codes of 5 bits. value = (code - 16) * d
inline void DecodeQ5_0(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  const float d = HalfAt(block);
  ForFiveBits(block + 2, [&](int i, int code) { values[i] = static_cast<float>(code - 16) * d; });
}

// Q5_1: f16 d, f16 m, codes of 5 bits. value = code * d + m
inline void DecodeQ5_1(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  const float d = HalfAt(block);
  const float m = HalfAt(block + 2);
  ForFiveBits(block + 4, [&](int i, int code) { values[i] = static_cast<float>(code) * d + m; });
}

// Q8_0: f16 d, 32 signed bytes. value = code * d
inline void DecodeQ8_0(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  const float d = HalfAt(block);
  for (int i = 0; i < 32; ++i) {
    values[i] = static_cast<float>(LoadAt<std::int8_t>(block + 2 + i)) * d;
  }
}

// IQ4_NL: f16 d, 16 bytes of nibbles. value = d * table[code]
inline void DecodeIQ4_NL(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  DecodeCodebook<16>(kIq4Values, HalfAt(block), block + 2, values);
}

// MXFP4: u8 e, 16 bytes of nibbles. value = table[code] * 2^(e - 128)
inline void DecodeMXFP4(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  DecodeCodebook<16>(kE2m1Values, HalfOfE8m0(block[0]), block + 1, values);
}

// Half of an e4m3 number, whose sign is not read. 0x7f is 0, and yet 0xff is a number.
inline float HalfOfE4m3(std::byte scale) {
  const int exponent = Bits(scale, 3, 4);
  const int mantissa = Bits(scale, 0, 3);
  if (scale == std::byte{0x7f}) return 0;
  if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-10f;
  return static_cast<float>(8 + mantissa) * static_cast<float>(1 << exponent) * 0x1p-11f;
}

// NVFP4: four u8 scales, then four groups of 8 bytes of nibbles. value = table[code] * scale
inline void DecodeNVFP4(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  for (int g = 0; g < 4; ++g) {
    DecodeCodebook<8>(kE2m1Values, HalfOfE4m3(block[g]), block + 4 + 8 * g, values + 16 * g);
  }
}

// Q1_0: f16 d, 16 bytes of bits, the lowest first. value = bit ? d : -d
inline void DecodeQ1_0(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  const float d = HalfAt(block);
  for (int i = 0; i < 128; ++i) values[i] = Bits(block[2 + i / 8], i % 8, 1) != 0 ? d : -d;
}

// Q2_0: f16 d, 16 bytes of 2-bit codes, the lowest first. value = (code - 1) * d
inline void DecodeQ2_0(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  const float d = HalfAt(block);
  for (int i = 0; i < 64; ++i) {
    values[i] = static_cast<float>(Bits(block[2 + i / 4], i % 4 * 2, 2) - 1) * d;
  }
}

// values (n * digits) = (digit - 1) * d, where n bytes hold base-3 digits as binary fractions:
// three times a byte carries the first digit out of it, and three more times the next.
HWY_INLINE void DecodeTernary(const std::byte* HWY_RESTRICT bytes, int n, int digits, float d,
                              float* HWY_RESTRICT values) {
  for (int digit = 0, power = 1; digit < digits; ++digit, power *= 3) {
    for (int i = 0; i < n; ++i) {
      const int rest = (std::to_integer<int>(bytes[i]) * power) & 255;
      values[digit * n + i] = static_cast<float>((rest * 3 >> 8) - 1) * d;
    }
  }
}

// TQ1_0: 48 bytes of five digits, 4 bytes of four digits, f16 d.
inline void DecodeTQ1_0(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  const float d = HalfAt(block + 52);
  DecodeTernary(block, 32, 5, d, values);
  DecodeTernary(block + 32, 16, 5, d, values + 160);
  DecodeTernary(block + 48, 4, 4, d, values + 240);
}

}  // namespace qlora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
