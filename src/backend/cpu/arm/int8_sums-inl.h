// Vectors of 4 sums of codes: how sums become float32. Functions are inlined into
// those of files with more instructions.
#ifndef QLORA_BACKEND_CPU_ARM_INT8_SUMS_INL_H_
#define QLORA_BACKEND_CPU_ARM_INT8_SUMS_INL_H_

#include <arm_neon.h>
#include <hwy/base.h>

#include <cstdint>

#include "backend/cpu/int8/int8_product.h"
#include "backend/int8/codes.h"

namespace qlora::cpu {

inline constexpr std::int64_t kNeonLanes = 4;  // of a vector of sums

// c = fma(sum, scales of the group from k on, [c]), and after the last group times the factor of
// the row, for 4 lanes of a row.
HWY_INLINE void StoreScaled(int32x4_t sum, const Int8Product& p, std::int64_t k, std::int64_t row,
                            std::int64_t lane) {
  float* c = p.c + row * p.c_stride + lane;
  const float32x4_t before = p.add || k > 0 ? vld1q_f32(c) : vdupq_n_f32(0);
  const float32x4_t scale = vld1q_f32(p.scales + k / int8::kGroup * p.width + lane);
  float32x4_t value = vfmaq_f32(before, vcvtq_f32_s32(sum), scale);
  if (p.factors != nullptr && k + int8::kGroup >= p.k) value = vmulq_n_f32(value, p.factors[row]);
  vst1q_f32(c, value);
}

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_ARM_INT8_SUMS_INL_H_
