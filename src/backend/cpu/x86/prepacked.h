// Prepacked weights, see gemm/prepacked.h, where there is AVX512_VBMI: what the tables of float32
// and of bfloat16 share. Contracts: PrepackedKernels in gemm/kernels.h.
#ifndef QLORA_BACKEND_CPU_X86_PREPACKED_H_
#define QLORA_BACKEND_CPU_X86_PREPACKED_H_

#include "backend/cpu/gemm/kernels.h"

namespace qlora::cpu {

// Whether this machine has AVX512_VBMI.
bool HasVbmi();

void PackScaleMap(const float* nested_code, std::byte* map);
void PackPanel(const QuantizedView& q, std::int64_t row, std::byte* panel);
void UnpackPanel(const PrepackedRows& in, std::int64_t chunk, std::int64_t chunks,
                 std::uint8_t* packed, float* scales);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_X86_PREPACKED_H_
