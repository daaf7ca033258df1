// The gradient of a dense weight that is itself trained: dw_acc(O, I) += dy(N, O)^T x(N, I). Rows
// of the weight are columns of dy, its columns are the lanes, and the sums run over the rows of x.
#include <algorithm>
#include <functional>

#include "backend/cpu/gemm/store_tile.h"
#include "backend/cpu/linear/linear.h"
#include "backend/cpu/linear/linear_blocks.h"

namespace qlora::cpu {
namespace {

// Rows [o, o + rows) of dw_acc += dy^T x.
void AddGradient(const Kernels& kernels, const ops::WeightGradient& op, std::int64_t o,
                 std::int64_t rows, const LinearScratch& scratch) {
  for (std::int64_t n = 0; n < op.x.rows; n += kBackwardDepth) {
    const std::int64_t depth = std::min(kBackwardDepth, op.x.rows - n);
    // The kernels read whole steps, and values beyond the depth must be zero.
    std::fill_n(scratch.rows.Row<std::byte>(0), rows * scratch.rows.stride * kernels.bytes,
                std::byte{0});
    kernels.pack_rows_transposed(Block(op.dy, n, depth, o, rows), scratch.rows.data,
                                 scratch.rows.stride);
    for (std::int64_t col = 0; col < op.x.cols; col += kChunk) {
      const std::int64_t lanes = std::min(kChunk, op.x.cols - col);
      PackPanels(kernels, Block(op.x, n, depth, col, lanes), scratch.panel.data);
      MultiplyPanels(kernels,
                     {.rows = rows,
                      .k = RoundUp(depth, kernels.step),
                      .a = scratch.rows.data,
                      .a_stride = scratch.rows.stride,
                      .panel = scratch.panel.data,
                      .c = scratch.sums(),
                      .c_stride = kChunk},
                     lanes);
      StoreTile(scratch.sums(), kChunk, true, Block(op.dw_acc, o, rows, col, lanes));
    }
  }
}

}  // namespace

void WeightGradient(const Machine& machine, const ops::WeightGradient& op) {
  const std::int64_t rows = op.dw_acc.rows;
  Carver plan;
  const LinearScratch needed(plan, machine.kernels, 1, 1, 0);
  machine.workspace.Check({0, plan.bytes()});
  const auto task = [&](std::int64_t index, int worker) {
    Carver carver(machine.workspace.worker(worker));
    const LinearScratch scratch(carver, machine.kernels, 1, 1, 0);
    const std::int64_t o = index * kWeightRows;
    AddGradient(machine.kernels, op, o, std::min(kWeightRows, rows - o), scratch);
  };
  machine.context.ParallelFor(Pieces(rows, kWeightRows), std::ref(task));
}

}  // namespace qlora::cpu
