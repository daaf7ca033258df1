#include "backend/cpu/gemm/dot_weight.h"

#include <algorithm>
#include <functional>

#include "backend/cpu/gemm/prepacked.h"
#include "backend/cpu/gemm/weight_rows.h"

namespace qlora::cpu {
namespace {

// Rows [row, row + rows) of a weight, each of which meets all rows of x.
struct DotTask {
  const DotOperand& x;
  const WeightView& weight;
  std::int64_t row;
  std::int64_t rows;
  const DotScratch& scratch;
  float* out;
  std::int64_t out_stride;

  // Calls dot(product) with `n` rows of the weight, from row + first on, for every batch of x.
  template <typename Dot>
  void EachBatch(DotForm form, std::int64_t first, std::int64_t n, const Dot& dot) const {
    for (std::int64_t b = 0; b < x.batches(form); ++b) {
      const std::int64_t m = x.First(form, b);
      dot(DotProduct{.rows = n,
                     .k = weight.cols(),
                     .count = x.First(form, b + 1) - m,
                     .x = x.Batch(form, b),
                     .out = out + m * out_stride + first,
                     .out_stride = out_stride,
                     .row_by_row = x.row_by_row});
    }
  }
};

// Several batches read a panel one after the other, from the caches: for K columns, 8 K bytes of
// the panel, and 24 K bytes (96 K in float32) of a batch of 12 (24) rows of x.
void DotPanels(const DotTask& task) {
  const PrepackedKernels& kernels = *task.x.kernels.prepacked;
  const PrepackedPanels panels(kernels, task.weight, task.scratch.prepacked.Row<std::byte>(0));
  // The room holds one repacked panel; stored panels that several batches read are taken one by
  // one too, so that a panel comes from memory once. A single batch takes all in one call.
  const bool one_by_one = !panels.are_stored() || task.x.batches(DotForm::kPrepacked) > 1;
  const std::int64_t most = one_by_one ? kPrepackedRows : task.rows;
  for (std::int64_t r = 0; r < task.rows; r += most) {
    const PrepackedRows part = panels.Rows(task.row + r, std::min(most, task.rows - r));
    task.EachBatch(DotForm::kPrepacked, r, part.rows,
                   [&](const DotProduct& product) { kernels.dot(part, product); });
  }
}

// A few rows at a time, so that preparing their scales overlaps with the products of the rows
// before.
void DotChunkRows(const DotTask& task) {
  for (std::int64_t r = 0; r < task.rows; r += kDotWeightRows) {
    const std::int64_t n = std::min(kDotWeightRows, task.rows - r);
    const WeightRows part(task.weight, task.row + r, n, task.scratch.scales.Row<float>(0));
    task.EachBatch(DotForm::kChunks, r, n, [&](const DotProduct& product) {
      DotsOf(task.x.kernels).dot_chunks(part.chunks(), product);
    });
  }
}

// All rows for one batch of x, then for the next: blocks come from the caches again.
void DotBlockRows(const DotTask& task) {
  BlockView rows = task.weight.blocks;
  rows.data = rows.Row(task.row);
  rows.rows = task.rows;
  const BlockKernels& kernels = *DotsOf(task.x.kernels).of_blocks(rows.format);
  task.EachBatch(DotForm::kBlocks, 0, task.rows,
                 [&](const DotProduct& product) { kernels.dot(rows, product); });
}

// Rows of values: read as they are stored, or packed as many at a time as fit into the scratch.
void DotValueRows(const DotTask& task) {
  const Kernels& kernels = task.x.kernels;
  const Kernels& dots = DotsOf(kernels);
  const ConstMatrixView& dense = task.weight.dense;
  const bool as_it_is =
      dense.dtype == DType::kBF16 || (dense.dtype == DType::kF32 && dots.reads_float_rows);
  if (task.weight.form() == WeightForm::kDense && as_it_is) {
    // Several batches read rows one after the other, from the caches.
    constexpr std::int64_t kCachedRows = 4 * kDotWeightRows;
    const std::int64_t most = task.x.batches(DotForm::kRows) > 1 ? kCachedRows : task.rows;
    for (std::int64_t r = 0; r < task.rows; r += most) {
      const ConstMatrixView rows = Rows(dense, task.row + r, std::min(most, task.rows - r));
      task.EachBatch(DotForm::kRows, r, rows.rows,
                     [&](const DotProduct& product) { dots.dot_rows(rows, product); });
    }
    return;
  }
  const std::int64_t cols = task.weight.cols();
  const std::int64_t stride = RoundUp(cols, kernels.step);
  const MatrixView& packed = task.scratch.packed;
  // At least 1: the scratch has room for the longest row (DotScratch).
  const std::int64_t most = packed.cols / stride;
  for (std::int64_t r = 0; r < task.rows; r += most) {
    const std::int64_t n = std::min(most, task.rows - r);
    WeightRows(task.weight, task.row + r, n, nullptr)
        .Pack(kernels, 0, cols, task.scratch.values.Row<float>(0), packed.data, stride);
    const ConstMatrixView rows = {packed.data, packed.dtype, n, cols, stride};
    task.EachBatch(DotForm::kRows, r, n,
                   [&](const DotProduct& product) { dots.dot_rows(rows, product); });
  }
}

}  // namespace

DotForm DotFormOf(const Kernels& kernels, const WeightView& weight, std::int64_t count) {
  if (weight.is_reordered()) return DotForm::kPrepacked;
  if (weight.form() == WeightForm::kBlocks &&
      DotsOf(kernels).of_blocks(weight.blocks.format) != nullptr) {
    return DotForm::kBlocks;
  }
  if (!IsChunked(weight)) return DotForm::kRows;
  const bool repack = PrepackedBytes(kernels, weight.quantized) > 0 &&
                      count >= kernels.prepacked->fewest_repacked_rows;
  return repack ? DotForm::kPrepacked : DotForm::kChunks;
}

std::int64_t MostDotRows(const Kernels& kernels, DotForm form, bool row_by_row) {
  constexpr std::int64_t kMostBatches = 8;  // of prepacked weights
  if (row_by_row && form != DotForm::kPrepacked) return kMostFewRows;
  switch (form) {
    case DotForm::kRows:
      return kDotBatch;
    case DotForm::kChunks:
    case DotForm::kBlocks:
      return 3 * kDotBatch;
    case DotForm::kPrepacked:
      if (kernels.prepacked == nullptr) return 0;
      if (kernels.prepacked->serves_many && !row_by_row) return kMostFewRows;
      return kMostBatches * kernels.prepacked->batch;
  }
  return 0;
}

void DotOperand::PackBatch(DotForm form, const ConstMatrixView& x, std::int64_t batch) const {
  const Kernels& dots = DotsOf(kernels);
  const auto pack = form == DotForm::kPrepacked ? kernels.prepacked->pack_x
                    : form == DotForm::kChunks  ? dots.pack_dot_chunks
                    : form == DotForm::kBlocks  ? dots.pack_dot_blocks
                                                : dots.pack_dot_rows;
  const std::int64_t first = First(form, batch);
  pack(Rows(x, first, First(form, batch + 1) - first), Batch(form, batch));
}

void DotOperand::Pack(Context& context, DotForm form, const ConstMatrixView& x) const {
  const auto task = [&](std::int64_t b, int) { PackBatch(form, x, b); };
  context.ParallelFor(batches(form), std::ref(task));
}

DotScratch::DotScratch(Carver& carver, const Kernels& kernels, std::int64_t cols, bool repacks) {
  constexpr std::int64_t kFewElements = 4096;
  scales = carver.Matrix(DType::kF32, 1, WeightRows::ScaleCount(cols, kDotWeightRows));
  values = carver.Matrix(DType::kF32, 1, cols);
  packed = carver.Matrix(ElementType(kernels), 1, std::max(kFewElements, RoundUp(cols, kDotGroup)));
  prepacked = carver.Matrix(DType::kU8, 1, repacks ? PrepackedPanels::RoomBytes(cols) : 0);
}

void DotWeightRows(const DotOperand& x, const WeightView& weight, std::int64_t row,
                   std::int64_t rows, const DotScratch& scratch, float* out,
                   std::int64_t out_stride) {
  const DotTask task = {x, weight, row, rows, scratch, out, out_stride};
  switch (x.FormOf(weight)) {
    case DotForm::kRows:
      return DotValueRows(task);
    case DotForm::kChunks:
      return DotChunkRows(task);
    case DotForm::kBlocks:
      return DotBlockRows(task);
    case DotForm::kPrepacked:
      return DotPanels(task);
  }
}

}  // namespace qlora::cpu
