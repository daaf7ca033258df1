#include "backend/cpu/gemm/kernels.h"

#include "base/simd_target.h"

namespace qlora::cpu {

const Kernels& SelectKernels(DType compute) {
  if (compute == DType::kF32) return FloatKernels(false);
  const bool has_bfloat16 = ActiveSimdTarget() == SimdTarget::kAvx512Bf16;
  return has_bfloat16 ? Bfloat16Kernels() : FloatKernels(true);
}

}  // namespace qlora::cpu
