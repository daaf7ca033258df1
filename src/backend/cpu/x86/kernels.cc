// What x86-64 has beyond the kernels of Highway; contracts: gemm/kernels.h, int8/int8_product.h.
#include "backend/cpu/gemm/kernels.h"

#include "backend/cpu/x86/bf16.h"
#include "backend/cpu/x86/int8/kernels.h"
#include "machine/simd_target.h"

namespace qlora::cpu {

const Kernels* Bfloat16Kernels() {
  static const Kernels kTable = {
      .panel = bf16::kPanel,
      .vector = bf16::kVector,
      .step = 2,
      .bytes = 2,
      .reads_float_rows = false,
      .multiply = bf16::Multiply,
      .pack_rows = bf16::PackRows,
      .pack_rows_transposed = bf16::PackRowsTransposed,
      .pack_panel_of_rows = bf16::PackPanelOfRows,
      .pack_panel_of_columns = bf16::PackPanelOfColumns,
      .decode_rows = bf16::DecodeRows,
      .multiply_chunks = bf16::MultiplyChunks,
      .multiply_decoded_panels = bf16::MultiplyDecodedPanels,
      .pack_dot_rows = bf16::PackDotRows,
      .dot_rows = bf16::DotRows,
      .of_blocks = bf16::KernelsOf,
      .pack_dot_blocks = bf16::PackDotBlocks,
      .pack_dot_chunks = bf16::PackDotChunks,
      .dot_chunks = bf16::DotChunks,
      .prepacked = bf16::Prepacked(),
  };
  static const Kernels kTiles = [] {
    Kernels table = kTable;
    table.multiply = bf16::MultiplyTiles;
    table.multiply_chunks = nullptr;
    table.multiply_decoded_panels = bf16::MultiplyDecodedPanelsTiles;
    // A tile has 16 rows of x. For fewer, float32 is faster than pairs on processors with tiles.
    table.dots = &FloatKernels(true);
    table.prepacked = bf16::PrepackedTiles();
    return table;
  }();
  // Asked at run time: the program is compiled for all processors, this folder for processors of
  // the target.
  switch (ActiveSimdTarget()) {
    case SimdTarget::kAvx512Bf16:
      return &kTable;
    case SimdTarget::kAmx:
      return &kTiles;
    default:
      return nullptr;
  }
}

const Int8Kernels& Int8KernelsOfProcessor(Int8Dots dots) {
  if (dots == Int8Dots::kAmx) return AmxKernels();
  return dots == Int8Dots::kVnni ? VnniKernels() : MaddKernels();
}

}  // namespace qlora::cpu
