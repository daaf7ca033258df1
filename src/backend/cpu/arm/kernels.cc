// What aarch64 has beyond the kernels of Highway; contracts: gemm/kernels.h, int8/int8_product.h.
#include "backend/cpu/gemm/kernels.h"

#include "backend/cpu/arm/bf16.h"
#include "backend/cpu/arm/int8.h"
#include "machine/simd_target.h"

namespace qlora::cpu {

const Kernels* Bfloat16Kernels() {
  static const Kernels kTable = {
      .panel = bf16::kPanel,
      .vector = bf16::kPanel,
      .step = bf16::kStep,
      .bytes = 2,
      .reads_float_rows = false,
      .multiply = bf16::Multiply,
      .pack_rows = bf16::PackRows,
      .pack_rows_transposed = bf16::PackRowsTransposed,
      .pack_panel_of_rows = bf16::PackPanelOfRows,
      .pack_panel_of_columns = bf16::PackPanelOfColumns,
      .decode_rows = bf16::DecodeRows,
      .multiply_chunks = nullptr,
      .multiply_decoded_panels = bf16::MultiplyDecodedPanels,
      .pack_dot_rows = bf16::PackDotRows,
      .dot_rows = bf16::DotRows,
      .of_blocks = [](BlockFormat) -> const BlockKernels* { return nullptr; },
      .pack_dot_blocks = nullptr,
      .pack_dot_chunks = bf16::PackDotRows,
      .dot_chunks = bf16::DotChunks,
  };
  return ActiveSimdTarget() == SimdTarget::kNeonMatrix ? &kTable : nullptr;
}

const PrepackedKernels* FloatPrepackedKernels(bool /*round*/) { return nullptr; }

const Int8Kernels& Int8KernelsOfProcessor(Int8Dots dots) {
  static constexpr Int8Kernels kDots = {0, MultiplyInt8Dots};
  static constexpr Int8Kernels kMatrices = {kCodeOffset, MultiplyInt8Matrices};
  return dots == Int8Dots::kUsmmla ? kMatrices : kDots;
}

}  // namespace qlora::cpu
