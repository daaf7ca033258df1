// The gradient of a dense weight: rows of it are columns of dy, its columns are the lanes.
#include <algorithm>
#include <functional>

#include "backend/cpu/linear.h"
#include "backend/cpu/linear_plan.h"
#include "backend/cpu/store_tile.h"

namespace qlora::cpu {

void WeightGradient(const Machine& machine, ConstMatrixView dy, ConstMatrixView x,
                    const MatrixView& dw_acc) {
  const Kernels& kernels = machine.kernels;
  Carver plan;
  const LinearScratch needed(plan, kernels, 1, 1, 0);
  machine.workspace.Check({0, plan.bytes()});
  // Rows [o, o + kWeightRows) of dw_acc.
  const auto task = [&](std::int64_t index, int worker) {
    Carver carver(machine.workspace.worker(worker));
    const LinearScratch scratch(carver, kernels, 1, 1, 0);
    const std::int64_t o = index * kWeightRows;
    const std::int64_t rows = std::min(kWeightRows, dw_acc.rows - o);
    for (std::int64_t n = 0; n < x.rows; n += kBackwardDepth) {
      const std::int64_t depth = std::min(kBackwardDepth, x.rows - n);
      const std::int64_t k = RoundUp(depth, kernels.step);
      // The kernels read whole steps, and what lies beyond the depth must be zero.
      std::fill_n(scratch.packed_rows(),
                  static_cast<std::size_t>(rows * scratch.rows.stride) * kernels.bytes,
                  std::byte{0});
      kernels.pack_rows_transposed(Block(dy, n, depth, o, rows), scratch.packed_rows(),
                                   scratch.rows.stride);
      for (std::int64_t col = 0; col < x.cols; col += kChunk) {
        const std::int64_t lanes = std::min(kChunk, x.cols - col);
        PackPanels(kernels, Block(x, n, depth, col, lanes), scratch.packed_panel());
        MultiplyPanels(kernels,
                       {.rows = rows,
                        .k = k,
                        .a = scratch.packed_rows(),
                        .a_stride = scratch.rows.stride,
                        .panel = scratch.packed_panel(),
                        .c = scratch.sums(),
                        .c_stride = kChunk,
                        .add = false},
                       lanes);
        StoreTile(scratch.sums(), kChunk, true, Block(dw_acc, o, rows, col, lanes));
      }
    }
  };
  machine.context.ParallelFor(Pieces(dw_acc.rows, kWeightRows), std::ref(task));
}

}  // namespace qlora::cpu
