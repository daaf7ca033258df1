// The gradient of a dense weight that is itself trained: dw_acc(O, I) += dy(N, O)^T x(N, I). Rows
// of the weight are columns of dy, its columns are the lanes, and the sums run over the rows of x.
#include <algorithm>
#include <functional>

#include "backend/cpu/gemm/store_tile.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/linear_blocks.h"

namespace qlora::cpu {
namespace {

// A block of rows of the weight and of rows of x.
struct GradientBlock {
  std::int64_t o;      // the first row of the weight
  std::int64_t rows;   // of the weight
  std::int64_t n;      // the first row of x
  std::int64_t depth;  // rows of x
};

// dw_acc += dy^T x for one block.
void AddGradient(const Kernels& kernels, const ConstMatrixView& dy, const ConstMatrixView& x,
                 const GradientBlock& b, const LinearScratch& scratch, const MatrixView& dw_acc) {
  // The kernels read whole steps, and values beyond the depth must be zero.
  std::fill_n(scratch.rows.Row<std::byte>(0), b.rows * scratch.rows.stride * kernels.bytes,
              std::byte{0});
  kernels.pack_rows_transposed(Block(dy, b.n, b.depth, b.o, b.rows), scratch.rows.data,
                               scratch.rows.stride);
  for (std::int64_t col = 0; col < x.cols; col += kChunk) {
    const std::int64_t lanes = std::min(kChunk, x.cols - col);
    PackPanels(kernels, Block(x, b.n, b.depth, col, lanes), scratch.panel.data);
    MultiplyPanels(kernels,
                   {.rows = b.rows,
                    .k = RoundUp(b.depth, kernels.step),
                    .a = scratch.rows.data,
                    .a_stride = scratch.rows.stride,
                    .panel = scratch.panel.data,
                    .c = scratch.sums(),
                    .c_stride = kChunk,
                    .add = false},
                   lanes);
    StoreTile(scratch.sums(), kChunk, true, Block(dw_acc, b.o, b.rows, col, lanes));
  }
}

}  // namespace

void WeightGradient(const Machine& machine, ConstMatrixView dy, ConstMatrixView x,
                    const MatrixView& dw_acc) {
  const Kernels& kernels = machine.kernels;
  Carver plan;
  const LinearScratch needed(plan, kernels, 1, 1, 0);
  machine.workspace.Check({0, plan.bytes()});
  const auto task = [&](std::int64_t index, int worker) {
    Carver carver(machine.workspace.worker(worker));
    const LinearScratch scratch(carver, kernels, 1, 1, 0);
    const std::int64_t o = index * kWeightRows;
    for (std::int64_t n = 0; n < x.rows; n += kBackwardDepth) {
      AddGradient(kernels, dy, x,
                  {.o = o,
                   .rows = std::min(kWeightRows, dw_acc.rows - o),
                   .n = n,
                   .depth = std::min(kBackwardDepth, x.rows - n)},
                  scratch, dw_acc);
    }
  };
  machine.context.ParallelFor(Pieces(dw_acc.rows, kWeightRows), std::ref(task));
}

}  // namespace qlora::cpu
