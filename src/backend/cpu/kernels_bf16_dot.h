// The dot products of Bfloat16Kernels(); contracts: Kernels in kernels.h.
#ifndef QLORA_BACKEND_CPU_KERNELS_BF16_DOT_H_
#define QLORA_BACKEND_CPU_KERNELS_BF16_DOT_H_

#include "backend/cpu/kernels.h"

namespace qlora::cpu::bf16 {

void PackDotRows(const ConstMatrixView& in, void* out);
void DotRows(const ConstMatrixView& rows, const DotProduct& product);
void PackDotChunks(const ConstMatrixView& in, void* out);
void DotChunks(const QuantizedChunks& in, const DotProduct& product);

}  // namespace qlora::cpu::bf16

#endif  // QLORA_BACKEND_CPU_KERNELS_BF16_DOT_H_
