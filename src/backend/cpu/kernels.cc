#include "backend/cpu/kernels.h"

#include "base/simd_target.h"

namespace qlora::cpu {

const Kernels& SelectKernels(DType compute) {
  const SimdTarget target = ActiveSimdTarget();
  if (compute == DType::kF32) return FloatKernels(false);
  return target == SimdTarget::kAvx512Bf16 ? Bfloat16Kernels() : FloatKernels(true);
}

}  // namespace qlora::cpu
