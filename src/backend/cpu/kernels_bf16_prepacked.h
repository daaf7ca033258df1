// The products of Bfloat16Kernels() with prepacked weights; contracts: Kernels in kernels.h. They
// also need AVX512_VBMI.
#ifndef QLORA_BACKEND_CPU_KERNELS_BF16_PREPACKED_H_
#define QLORA_BACKEND_CPU_KERNELS_BF16_PREPACKED_H_

#include "backend/cpu/kernels.h"

namespace qlora::cpu::bf16 {

void PackDotPrepacked(const ConstMatrixView& in, void* out);
void DotPrepacked(const PrepackedRows& in, const DotProduct& product);
void UnpackPanel(const PrepackedRows& in, std::int64_t chunk, std::int64_t chunks,
                 std::uint8_t* packed, float* scales);

}  // namespace qlora::cpu::bf16

#endif  // QLORA_BACKEND_CPU_KERNELS_BF16_PREPACKED_H_
