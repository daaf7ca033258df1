// The functions of Bfloat16Kernels(); contracts: Kernels in gemm/kernels.h.
#ifndef QLORA_BACKEND_CPU_X86_BF16_H_
#define QLORA_BACKEND_CPU_X86_BF16_H_

#include "backend/cpu/gemm/kernels.h"

namespace qlora::cpu::bf16 {

inline constexpr std::int64_t kPanel = 64;   // lanes: 6 rows x 4 vectors = 24 of 32 registers
inline constexpr std::int64_t kVector = 16;  // lanes of one register of sums

// bf16_tile.cc
void Multiply(const Product& product);
void DecodeRows(const QuantizedChunks& in, void* out, std::int64_t stride);
void MultiplyChunks(const QuantizedChunks& in, const Product& product);

// bf16_amx.cc
void MultiplyTiles(const Product& product);
void MultiplyDecodedPanelsTiles(const QuantizedChunks& in, void* panels, const Product& product);

// bf16_pack.cc
void PackRows(const ConstMatrixView& in, float scale, void* out, std::int64_t stride);
void PackRowsTransposed(const ConstMatrixView& in, void* out, std::int64_t stride);
void PackPanelOfRows(const ConstMatrixView& in, void* panel, std::int64_t width);
void PackPanelOfColumns(const ConstMatrixView& in, void* panel, std::int64_t width);

// bf16_decoded.cc
void MultiplyDecodedPanels(const QuantizedChunks& in, void* panels, const Product& product);

// bf16_dot.cc
void PackDotRows(const ConstMatrixView& in, void* out);
void DotRows(const ConstMatrixView& rows, const DotProduct& product);
void PackDotChunks(const ConstMatrixView& in, void* out);
void DotChunks(const QuantizedChunks& in, const DotProduct& product);

// bf16_blocks.cc
void PackDotBlocks(const ConstMatrixView& in, void* out);
// Null for formats whose rows are decoded first.
const BlockKernels* KernelsOf(BlockFormat format);

// bf16_prepacked.cc. Null where AVX512_VBMI is missing.
const PrepackedKernels* Prepacked();
// prepacked_amx.cc. Null likewise.
const PrepackedKernels* PrepackedTiles();

}  // namespace qlora::cpu::bf16

#endif  // QLORA_BACKEND_CPU_X86_BF16_H_
