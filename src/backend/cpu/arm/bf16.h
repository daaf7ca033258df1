// The functions of Bfloat16Kernels(); contracts: Kernels in gemm/kernels.h.
#ifndef QLORA_BACKEND_CPU_ARM_BF16_H_
#define QLORA_BACKEND_CPU_ARM_BF16_H_

#include "backend/cpu/gemm/kernels.h"

namespace qlora::cpu::bf16 {

inline constexpr std::int64_t kPanel =
    8;                                    // lanes: 6 pairs of rows x 4 of lanes, 24 of 32 registers
inline constexpr std::int64_t kStep = 4;  // values of k in a matrix

// bf16_tile.cc
void Multiply(const Product& product);

// bf16_pack.cc
void PackRows(const ConstMatrixView& in, float scale, void* out, std::int64_t stride);
void PackRowsTransposed(const ConstMatrixView& in, void* out, std::int64_t stride);
void PackPanelOfRows(const ConstMatrixView& in, void* panel, std::int64_t width);
void PackPanelOfColumns(const ConstMatrixView& in, void* panel, std::int64_t width);
void PackDotRows(const ConstMatrixView& in, void* out);

// bf16_decoded.cc
void DecodeRows(const QuantizedChunks& in, void* out, std::int64_t stride);
void MultiplyDecodedPanels(const QuantizedChunks& in, void* panels, const Product& product);

// bf16_dot.cc
void DotRows(const ConstMatrixView& rows, const DotProduct& product);
void DotChunks(const QuantizedChunks& in, const DotProduct& product);

}  // namespace qlora::cpu::bf16

#endif  // QLORA_BACKEND_CPU_ARM_BF16_H_
