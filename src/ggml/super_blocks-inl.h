// Decoders of the formats with two levels of scales and codes of 2 to 6 bits. Included once per
// target.
#if defined(QLORA_GGML_SUPER_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_GGML_SUPER_BLOCKS_INL_H_
#undef QLORA_GGML_SUPER_BLOCKS_INL_H_
#else
#define QLORA_GGML_SUPER_BLOCKS_INL_H_
#endif

#include "ggml/nibbles-inl.h"
#include "ggml/sub_scales.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::HWY_NAMESPACE {

// codes (256) of 2 bits in 64 bytes: bits 0 and 1 of 32 bytes are the first 32 codes, bits 2 and 3
// of the same bytes the next.
HWY_INLINE void UnpackTwoBits(const std::byte* HWY_RESTRICT packed,
                              std::uint8_t* HWY_RESTRICT codes) {
  for (int row = 0; row < 8; ++row) {
    for (int i = 0; i < 32; ++i) {
      codes[32 * row + i] =
          static_cast<std::uint8_t>(Bits(packed[row / 4 * 32 + i], row % 4 * 2, 2));
    }
  }
}

// Adds bit `row` of byte i to code 32 * row + i of 256, as bit number `place`.
HWY_INLINE void AddHighBits(const std::byte* HWY_RESTRICT bits, int place,
                            std::uint8_t* HWY_RESTRICT codes) {
  for (int row = 0; row < 8; ++row) {
    for (int i = 0; i < 32; ++i) {
      std::uint8_t& code = codes[32 * row + i];
      code = static_cast<std::uint8_t>(code | Bits(bits[i], row, 1) << place);
    }
  }
}

// Q2_K: 16 bytes of scales (low nibble) and mins (high nibble), codes of 2 bits, f16 d, f16 dmin.
inline void DecodeQ2_K(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  const float d = HalfAt(block + 80);
  const float d_min = HalfAt(block + 82);
  std::uint8_t codes[256];
  UnpackTwoBits(block + 16, codes);
  for (int j = 0; j < 16; ++j) {
    const float scale = d * static_cast<float>(LowNibble(block[j]));
    const float min = d_min * static_cast<float>(HighNibble(block[j]));
    for (int i = 16 * j; i < 16 * (j + 1); ++i) {
      values[i] = scale * static_cast<float>(codes[i]) - min;
    }
  }
}

// Q3_K: 32 bytes of high bits, 64 bytes of low bits, 12 bytes of scales, f16 d.
inline void DecodeQ3_K(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  const float d = HalfAt(block + 108);
  const SubScales16 scales = UnpackScalesQ3_K(block + 96);
  std::uint8_t codes[256];
  UnpackTwoBits(block + 32, codes);
  AddHighBits(block, 2, codes);
  for (int j = 0; j < 16; ++j) {
    const float scale = d * static_cast<float>(scales[j]);
    for (int i = 16 * j; i < 16 * (j + 1); ++i) {
      values[i] = scale * static_cast<float>(codes[i] - 4);
    }
  }
}

// What Q4_K and Q5_K share: f16 d, f16 dmin, 12 bytes of scales and mins of 32 values each.
HWY_INLINE void ScaleFourOrFiveBits(const std::byte* HWY_RESTRICT block,
                                    const std::uint8_t* HWY_RESTRICT codes,
                                    float* HWY_RESTRICT values) {
  const float d = HalfAt(block);
  const float d_min = HalfAt(block + 2);
  const ScalesAndMins sub = UnpackScalesAndMins(block + 4);
  for (int j = 0; j < 8; ++j) {
    const float scale = d * static_cast<float>(sub.scales[j]);
    const float min = d_min * static_cast<float>(sub.mins[j]);
    for (int i = 32 * j; i < 32 * (j + 1); ++i) {
      values[i] = scale * static_cast<float>(codes[i]) - min;
    }
  }
}

// Q4_K: scales, then four groups of 32 bytes of nibbles.
inline void DecodeQ4_K(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  std::uint8_t codes[256];
  for (int g = 0; g < 4; ++g) UnpackNibbles<32>(block + 16 + 32 * g, codes + 64 * g);
  ScaleFourOrFiveBits(block, codes, values);
}

// Q5_K: scales, 32 bytes of high bits, then nibbles as in Q4_K.
inline void DecodeQ5_K(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  std::uint8_t codes[256];
  for (int g = 0; g < 4; ++g) UnpackNibbles<32>(block + 48 + 32 * g, codes + 64 * g);
  AddHighBits(block + 16, 4, codes);
  ScaleFourOrFiveBits(block, codes, values);
}

// Q6_K: 128 bytes of nibbles, 64 bytes of two high bits, 16 signed scales, f16 d. The nibbles of a
// group of 64 bytes are 128 codes.
inline void DecodeQ6_K(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  const float d = HalfAt(block + 208);
  std::uint8_t codes[256];
  UnpackNibbles<64>(block, codes);
  UnpackNibbles<64>(block + 64, codes + 128);
  std::uint8_t high[256];
  UnpackTwoBits(block + 128, high);
  for (int j = 0; j < 16; ++j) {
    const float scale = d * static_cast<float>(LoadAt<std::int8_t>(block + 192 + j));
    for (int i = 16 * j; i < 16 * (j + 1); ++i) {
      values[i] = scale * static_cast<float>((codes[i] | high[i] << 4) - 32);
    }
  }
}

// IQ4_XS: f16 d, scales (2 and 4 bytes), then eight groups of 16 bytes of nibbles.
inline void DecodeIQ4_XS(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  const float d = HalfAt(block);
  const SubScales8 scales = UnpackScalesIQ4_XS(block + 2);
  for (int g = 0; g < 8; ++g) {
    DecodeCodebook<16>(kIq4Values, d * static_cast<float>(scales[g]), block + 8 + 16 * g,
                       values + 32 * g);
  }
}

// TQ2_0: codes of 2 bits, f16 d. value = (code - 1) * d
inline void DecodeTQ2_0(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  const float d = HalfAt(block + 64);
  std::uint8_t codes[256];
  UnpackTwoBits(block, codes);
  for (int i = 0; i < 256; ++i) values[i] = static_cast<float>(codes[i] - 1) * d;
}

}  // namespace qlora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
