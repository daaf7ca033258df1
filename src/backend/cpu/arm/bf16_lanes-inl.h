// Vectors of 8 bfloat16: rows of other types, and values of 4-bit chunks, as such.
#ifndef QLORA_BACKEND_CPU_ARM_BF16_LANES_INL_H_
#define QLORA_BACKEND_CPU_ARM_BF16_LANES_INL_H_

#include <arm_neon.h>
#include <hwy/base.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "backend/cpu/views.h"
#include "qlora/tensor.h"

// The instructions of all functions that multiply or round to bfloat16.
#define QLORA_NEON_BF16 "arch=armv8.2-a+bf16"
HWY_PUSH_ATTRIBUTES(QLORA_NEON_BF16)

namespace qlora::cpu::bf16 {

inline constexpr std::int64_t kVector = 8;

HWY_INLINE uint16x8_t RoundToBits(float32x4_t low, float32x4_t high) {
  return vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high));
}

// 8 values times scale.
HWY_INLINE uint16x8_t BitsOf(const void* from, DType dtype, float scale) {
  float32x4_t low;
  float32x4_t high;
  if (dtype == DType::kF32) {
    std::memcpy(&low, from, sizeof(low));
    std::memcpy(&high, static_cast<const char*>(from) + sizeof(low), sizeof(high));
  } else {
    uint16x8_t bits;
    std::memcpy(&bits, from, sizeof(bits));
    if (dtype == DType::kBF16) {
      if (scale == 1) return bits;
      low = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits), 16));
      high = vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(bits), 16));
    } else {
      low = vcvt_f32_f16(vget_low_f16(vreinterpretq_f16_u16(bits)));
      high = vcvt_f32_f16(vget_high_f16(vreinterpretq_f16_u16(bits)));
    }
  }
  return RoundToBits(vmulq_n_f32(low, scale), vmulq_n_f32(high, scale));
}

// Values [i, i + 8) of a row times scale, zeros beyond its end.
HWY_INLINE uint16x8_t LoadBits(const ConstMatrixView& in, std::int64_t row, std::int64_t i,
                               float scale = 1) {
  const std::int64_t bytes = in.dtype == DType::kF32 ? 4 : 2;
  const char* from = static_cast<const char*>(in.data) + (row * in.stride + i) * bytes;
  const std::int64_t left = in.cols - i;
  if (left >= kVector) return BitsOf(from, in.dtype, scale);
  char some[kVector * sizeof(float)] = {};
  if (left > 0) std::memcpy(some, from, static_cast<std::size_t>(left * bytes));
  return BitsOf(some, in.dtype, scale);
}

// The 16 values of a code times scale, rounded, as tables of their lower and upper bytes.
class Table {
 public:
  HWY_INLINE Table(const float* code, float scale) {
    const uint8x16_t first = vreinterpretq_u8_u16(BitsOf(code, DType::kF32, scale));
    const uint8x16_t second = vreinterpretq_u8_u16(BitsOf(code + kVector, DType::kF32, scale));
    low_ = vuzp1q_u8(first, second);
    high_ = vuzp2q_u8(first, second);
  }

  // The 32 values of 16 bytes, in the order of columns. A byte begins with its upper half.
  HWY_INLINE void Decode(const std::uint8_t* packed, uint16x8_t (&values)[4]) const {
    const uint8x16_t bytes = vld1q_u8(packed);
    const uint8x16_t even = vshrq_n_u8(bytes, 4);
    const uint8x16_t odd = vandq_u8(bytes, vdupq_n_u8(15));
    LookUp(vzip1q_u8(even, odd), values[0], values[1]);
    LookUp(vzip2q_u8(even, odd), values[2], values[3]);
  }

 private:
  HWY_INLINE void LookUp(uint8x16_t index, uint16x8_t& first, uint16x8_t& second) const {
    const uint8x16_t low = vqtbl1q_u8(low_, index);
    const uint8x16_t high = vqtbl1q_u8(high_, index);
    first = vreinterpretq_u16_u8(vzip1q_u8(low, high));
    second = vreinterpretq_u16_u8(vzip2q_u8(low, high));
  }

  uint8x16_t low_;
  uint8x16_t high_;
};

}  // namespace qlora::cpu::bf16
HWY_POP_ATTRIBUTES

#endif  // QLORA_BACKEND_CPU_ARM_BF16_LANES_INL_H_
