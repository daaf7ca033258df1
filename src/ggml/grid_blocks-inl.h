// Decoders of the formats whose codes name rows of a grid. Included once per target.
#if defined(QLORA_GGML_GRID_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_GGML_GRID_BLOCKS_INL_H_
#undef QLORA_GGML_GRID_BLOCKS_INL_H_
#else
#define QLORA_GGML_GRID_BLOCKS_INL_H_
#endif

#include <bit>

#include "ggml/block_bytes.h"
#include "ggml/grids.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::HWY_NAMESPACE {

// Bit i of `signs` set: value i is negative.
template <std::size_t kValues>
HWY_INLINE void PutSigned(float scale, const std::array<std::int8_t, kValues>& row,
                          std::uint32_t signs, float* HWY_RESTRICT values) {
  for (std::size_t i = 0; i < kValues; ++i) {
    const float value = scale * static_cast<float>(row[i]);
    values[i] = (signs >> i & 1) != 0 ? -value : value;
  }
}

// The signs of eight values, of which seven are stored: an even number of them is set.
inline std::uint32_t EvenSigns(std::uint32_t seven) {
  seven &= 127;
  return seven | static_cast<std::uint32_t>(std::popcount(seven) & 1) << 7;
}

inline float HalfSteps(float d, int scale, float unit) {
  return d * (0.5f + static_cast<float>(scale)) * unit;
}

// IQ2_XXS: f16 d, then for each 32 values four row numbers and a u32 of four times seven signs and,
// in its top bits, the scale.
inline void DecodeIQ2_XXS(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  const float d = HalfAt(block);
  for (int g = 0; g < 8; ++g) {
    const std::byte* group = block + 2 + 8 * g;
    const auto signs = LoadAt<std::uint32_t>(group + 4);
    const float scale = HalfSteps(d, static_cast<int>(signs >> 28), 0.25f);
    for (int k = 0; k < 4; ++k) {
      PutSigned(scale, kIq2XxsGrid[std::to_integer<std::size_t>(group[k])],
                EvenSigns(signs >> (7 * k)), values + 32 * g + 8 * k);
    }
  }
}

// IQ2_XS: f16 d, 32 u16 (9 bits of row number, 7 signs), 8 bytes of scales for 16 values each.
inline void DecodeIQ2_XS(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  const float d = HalfAt(block);
  for (int k = 0; k < 32; ++k) {
    const std::uint32_t code = LoadAt<std::uint16_t>(block + 2 + 2 * k);
    const float scale = HalfSteps(d, Bits(block[66 + k / 4], k % 4 / 2 * 4, 4), 0.25f);
    PutSigned(scale, kIq2XsGrid[code & 511], EvenSigns(code >> 9), values + 8 * k);
  }
}

// IQ2_S: f16 d, 32 bytes of row numbers, 32 bytes of signs, 8 bytes with the top 2 bits of row
// numbers, 8 bytes of scales as in IQ2_XS.
inline void DecodeIQ2_S(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  const float d = HalfAt(block);
  for (int k = 0; k < 32; ++k) {
    const int row = std::to_integer<int>(block[2 + k]) | Bits(block[66 + k / 4], k % 4 * 2, 2) << 8;
    const float scale = HalfSteps(d, Bits(block[74 + k / 4], k % 4 / 2 * 4, 4), 0.25f);
    PutSigned(scale, kIq2SGrid[row], std::to_integer<std::uint32_t>(block[34 + k]), values + 8 * k);
  }
}

// IQ3_XXS: f16 d, 64 row numbers, then for each 32 values a u32 as in IQ2_XXS.
inline void DecodeIQ3_XXS(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  const float d = HalfAt(block);
  for (int k = 0; k < 32; ++k) {
    const auto group = LoadAt<std::uint32_t>(block + 66 + k / 4 * 4);
    const float scale = HalfSteps(d, static_cast<int>(group >> 28), 0.5f);
    const std::uint32_t signs = EvenSigns(group >> (k % 4 * 7));
    for (int half = 0; half < 2; ++half) {
      PutSigned(scale, kIq3XxsGrid[std::to_integer<std::size_t>(block[2 + 2 * k + half])],
                signs >> (4 * half), values + 8 * k + 4 * half);
    }
  }
}

// IQ3_S: f16 d, 64 row numbers, 8 bytes of their top bits, 32 bytes of signs, 4 bytes of scales.
inline void DecodeIQ3_S(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  const float d = HalfAt(block);
  for (int k = 0; k < 64; ++k) {
    const int row = std::to_integer<int>(block[2 + k]) | Bits(block[66 + k / 8], k % 8, 1) << 8;
    const float scale = d * static_cast<float>(1 + 2 * Bits(block[106 + k / 16], k / 8 % 2 * 4, 4));
    const auto signs = std::to_integer<std::uint32_t>(block[74 + k / 2]) >> (k % 2 * 4);
    PutSigned(scale, kIq3SGrid[row], signs, values + 4 * k);
  }
}

// IQ1: the rows are values, which `down` shifts by -1/8 or else 1/8.
HWY_INLINE void PutShifted(float d, int scale, int row, bool down, float* HWY_RESTRICT values) {
  const float factor = d * static_cast<float>(2 * scale + 1);
  const float shift = down ? -0.125f : 0.125f;
  for (int i = 0; i < 8; ++i) values[i] = factor * (static_cast<float>(kIq1Grid[row][i]) + shift);
}

// IQ1_S: f16 d, 32 bytes of row numbers, then for each 32 values a u16: four times the top 3 bits
// of row numbers, 3 bits of scale, the shift.
inline void DecodeIQ1_S(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  const float d = HalfAt(block);
  for (int k = 0; k < 32; ++k) {
    const int group = LoadAt<std::uint16_t>(block + 34 + k / 4 * 2);
    const int row = std::to_integer<int>(block[2 + k]) | (group >> (k % 4 * 3) & 7) << 8;
    PutShifted(d, group >> 12 & 7, row, group >> 15 != 0, values + 8 * k);
  }
}

// IQ1_M: 32 bytes of row numbers, 16 bytes of nibbles (the top 3 bits of a row number, the shift),
// four u16 of four 3-bit scales for 16 values each; their top nibbles are the f16 d.
inline void DecodeIQ1_M(const std::byte* HWY_RESTRICT block, float* HWY_RESTRICT values) {
  Float16 half{0};
  for (int i = 0; i < 4; ++i) {
    const int top = LoadAt<std::uint16_t>(block + 48 + 2 * i) >> 12;
    half.bits = static_cast<std::uint16_t>(half.bits | top << (4 * i));
  }
  const float d = ToFloat(half);
  for (int k = 0; k < 32; ++k) {
    const int nibble = Bits(block[32 + k / 2], k % 2 * 4, 4);
    const int row = std::to_integer<int>(block[k]) | (nibble & 7) << 8;
    const int scales = LoadAt<std::uint16_t>(block + 48 + k / 8 * 2);
    PutShifted(d, scales >> (k / 2 % 4 * 3) & 7, row, nibble >> 3 != 0, values + 8 * k);
  }
}

}  // namespace qlora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
