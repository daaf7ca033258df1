// What the files of Bfloat16Kernels() share.
#ifndef QLORA_BACKEND_CPU_KERNELS_BF16_H_
#define QLORA_BACKEND_CPU_KERNELS_BF16_H_

#include "backend/cpu/kernels.h"

namespace qlora::cpu::bf16 {

inline constexpr std::int64_t kPanel = 64;   // lanes: 6 rows x 4 vectors = 24 of 32 registers
inline constexpr std::int64_t kVector = 16;  // lanes of one register of sums

// Kernels::multiply.
void Multiply(const Product& product);

}  // namespace qlora::cpu::bf16

#endif  // QLORA_BACKEND_CPU_KERNELS_BF16_H_
