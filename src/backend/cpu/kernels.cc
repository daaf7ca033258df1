#include "backend/cpu/kernels.h"

#include <algorithm>

#include "base/simd_target.h"

namespace qlora::cpu {
namespace {

// Most rows of products with prepacked weights where panels are float32: with few rows both wait
// for weights, which bfloat16 looks up twice as fast; with more, for multiply-adds.
constexpr std::int64_t kMixedPrepackedRows = 2 * kPrepackedBatch;

}  // namespace

const Kernels& PanelKernels(DType compute) {
  if (compute == DType::kF32) return FloatKernels(false);
  return ActiveSimdTarget() == SimdTarget::kAvx512Bf16 ? Bfloat16Kernels() : FloatKernels(true);
}

const Kernels& DotKernels(DType compute) {
  if (compute == DType::kF32 || ActiveSimdTarget() != SimdTarget::kAvx512Mixed) {
    return PanelKernels(compute);
  }
  static const Kernels few_rows = [] {
    Kernels kernels = Bfloat16Kernels();
    kernels.most_prepacked_rows = std::min(kernels.most_prepacked_rows, kMixedPrepackedRows);
    return kernels;
  }();
  return few_rows;
}

}  // namespace qlora::cpu
