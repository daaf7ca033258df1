// Dot products of few rows of x with rows of a weight, in whichever form the weight is read
// fastest.
#ifndef QLORA_BACKEND_CPU_GEMM_DOT_WEIGHT_H_
#define QLORA_BACKEND_CPU_GEMM_DOT_WEIGHT_H_

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "backend/backend.h"
#include "backend/cpu/machine.h"
#include "backend/cpu/views.h"

namespace qlora::cpu {

// The form in which a weight is read, and x is packed for dot products with it:
//   kRows       rows of values; weights that kernels cannot read are packed or decoded row by row
//   kChunks     row-major 4-bit chunks
//   kBlocks     rows of ggml's blocks
//   kPrepacked  panels of 16 rows (prepacked.h), stored or packed as they are needed
enum class DotForm : std::uint8_t { kRows, kChunks, kBlocks, kPrepacked };
inline constexpr DotForm kDotForms[] = {DotForm::kRows, DotForm::kChunks, DotForm::kBlocks,
                                        DotForm::kPrepacked};
inline constexpr int kDotFormCount = std::size(kDotForms);

// The elements of a row of x with `cols` columns, packed for dot products of `form`.
inline std::int64_t PackedElements(DotForm form, std::int64_t cols) {
  return Pieces(cols, kDotGroup) * (form == DotForm::kBlocks ? kBlockDotElements : kDotGroup);
}

// The table whose elements x has then.
inline const Kernels& DotTable(const Kernels& kernels, DotForm form) {
  return form == DotForm::kPrepacked ? kernels : DotsOf(kernels);
}

// The form for dot products of a weight with `count` rows of x; row by row as for one.
DotForm DotFormOf(const Kernels& kernels, const WeightView& weight, std::int64_t count);
// Up to this many rows of x, dot products are faster than panels, or have to do row by row.
std::int64_t MostDotRows(const Kernels& kernels, DotForm form, bool row_by_row = false);

// Few rows of x, packed for dot products in batches of nearly the same number of rows.
struct DotOperand {
  const Kernels& kernels;
  std::int64_t count = 0;  // rows of x
  std::int64_t cols = 0;   // of x
  bool row_by_row = false;
  // Batches, for each form that Pack was called for.
  std::byte* packed[kDotFormCount] = {};

  std::int64_t batches(DotForm form) const {
    if (form != DotForm::kPrepacked) return Pieces(count, kDotBatch);
    const std::int64_t most = kernels.prepacked->batch;
    const bool limited = row_by_row && !kernels.prepacked->serves_many;
    return Pieces(count, limited ? std::min(most, kRowByRowBatch) : most);
  }
  std::int64_t First(DotForm form, std::int64_t batch) const {
    return count * batch / batches(form);
  }
  std::byte* Batch(DotForm form, std::int64_t batch) const {
    const std::int64_t elements = First(form, batch) * PackedElements(form, cols);
    return packed[static_cast<int>(form)] + elements * DotTable(kernels, form).bytes;
  }
  DotForm FormOf(const WeightView& weight) const {
    return DotFormOf(kernels, weight, row_by_row ? 1 : count);
  }
  void Pack(Context& context, DotForm form, const ConstMatrixView& x) const;
  void PackBatch(DotForm form, const ConstMatrixView& x, std::int64_t batch) const;
};

// Scratch for rows of a weight.
struct DotScratch {
  MatrixView scales;     // of kDotWeightRows rows
  MatrixView values;     // of one row: (1, cols) float32
  MatrixView packed;     // one long row or several short ones, as elements
  MatrixView prepacked;  // 16 rows that are packed as they are needed, in bytes

  // cols: of the longest row; repacks: whether rows are prepacked as they are needed.
  DotScratch(Carver& carver, const Kernels& kernels, std::int64_t cols, bool repacks);
};

// out(m, r) = x(m) . weight(row + r) for r < rows; `out_stride` floats between rows of out.
// Prepacked weights take whole panels of rows.
void DotWeightRows(const DotOperand& x, const WeightView& weight, std::int64_t row,
                   std::int64_t rows, const DotScratch& scratch, float* out,
                   std::int64_t out_stride);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_GEMM_DOT_WEIGHT_H_
