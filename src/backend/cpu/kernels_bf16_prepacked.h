// The products of Bfloat16Kernels() with prepacked weights; contracts: Kernels in kernels.h. They
// also need AVX512_VBMI.
#ifndef QLORA_BACKEND_CPU_KERNELS_BF16_PREPACKED_H_
#define QLORA_BACKEND_CPU_KERNELS_BF16_PREPACKED_H_

#include "backend/cpu/kernels.h"

namespace qlora::cpu::bf16 {

inline constexpr std::int64_t kPrepackedBatch = 12;
void PackDotPrepacked(const ConstMatrixView& in, void* out);
void DotPrepacked(const PrepackedRows& in, const DotProduct& product);

}  // namespace qlora::cpu::bf16

#endif  // QLORA_BACKEND_CPU_KERNELS_BF16_PREPACKED_H_
