// Products of Bfloat16Kernels() with panels that are decoded on the way; contract: Kernels in
// kernels.h.
#ifndef QLORA_BACKEND_CPU_KERNELS_BF16_DECODED_H_
#define QLORA_BACKEND_CPU_KERNELS_BF16_DECODED_H_

#include "backend/cpu/kernels.h"

namespace qlora::cpu::bf16 {

void MultiplyDecodedPanels(const QuantizedChunks& in, void* panels, const Product& product);

}  // namespace qlora::cpu::bf16

#endif  // QLORA_BACKEND_CPU_KERNELS_BF16_DECODED_H_
