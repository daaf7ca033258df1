// Attention, backward. A task takes some heads of a group and some blocks of their queries in one
// sequence. Such a block meets every tile of keys that it sees once, in five products:
//
//   scores = q k^T      d_scores = d_o v^T      then p and ds, their softmax and its gradient
//   dq += ds k          dv += p^T d_o           dk += ds^T q
//
// dq is complete when its block is; dk and dv grow in the scratch of the task, transposed, and the
// tasks of a sequence are added at the end.
#include <algorithm>
#include <functional>

#include "backend/cpu/attention/attention.h"
#include "backend/cpu/attention/attention_blocks.h"
#include "backend/cpu/gemm/panels.h"
#include "backend/cpu/gemm/store_tile.h"
#include "backend/cpu/row_ops.h"

namespace qlora::cpu {
namespace {

constexpr std::int64_t kSumRows = 32;  // of a task of the phases before and after
// The heads of a group, and then the queries, are split into parts until a sequence makes this many
// tasks, so that threads share it. Every part has separate sums of dk and dv, which is the cost of
// more parts. The cut of a sequence depends on nothing but the sequence.
constexpr std::int64_t kLeastTasks = 8;

struct GradientCut : HeadCut {
  explicit GradientCut(const AttentionShape& shape)
      : HeadCut(shape, Pieces(kLeastTasks, shape.kv_heads)),
        wanted(Pieces(kLeastTasks, shape.kv_heads)) {}

  std::int64_t wanted;  // parts of a group

  // Parts of the blocks of a sequence, as even as can be.
  std::int64_t ranges(std::int64_t length) const {
    return std::clamp<std::int64_t>(Pieces(wanted, head_parts()), 1,
                                    std::max<std::int64_t>(Pieces(length, queries), 1));
  }
  // Parts of a group.
  std::int64_t parts(std::int64_t length) const { return head_parts() * ranges(length); }
};

// Scratch of one worker.
struct GradientScratch {
  MatrixView q, d_o;                        // (rows, K) operands
  MatrixView q_transposed, d_o_transposed;  // (K, rows) operands
  MatrixView gradient;                      // (rows, kTile) operand: d_scores
  MatrixView panels[3];          // of a tile: k and v against q and d_o, and the columns of k
  MatrixView p_panel, ds_panel;  // the columns of p and d_scores
  MatrixView scores, d_scores;   // (rows, kTile) float32
  MatrixView dq;                 // (rows, K) float32
  MatrixView dk, dv;             // (tiles * K, kTile) float32: a tile of keys after the other
  MatrixView statistics;         // (2, rows) lse and delta
  MatrixView visible;            // (2, rows) first visible column, and the one after the last

  // keys: of the longest sequence
  GradientScratch(Carver& carver, const Kernels& kernels, const AttentionShape& shape,
                  std::int64_t keys) {
    const DType element = ElementType(kernels);
    const GradientCut cut(shape);
    const std::int64_t rows = cut.heads * cut.queries;
    const std::int64_t K = shape.head_dim;
    q = carver.Matrix(element, rows, PackedStride(kernels, K));
    d_o = carver.Matrix(element, rows, PackedStride(kernels, K));
    q_transposed = carver.Matrix(element, K, PackedStride(kernels, rows));
    d_o_transposed = carver.Matrix(element, K, PackedStride(kernels, rows));
    gradient = carver.Matrix(element, rows, PackedStride(kernels, kTile));
    for (MatrixView& panel : panels) {
      panel = carver.Matrix(element, RoundUp(K, kernels.panel), kTile);
    }
    p_panel = carver.Matrix(element, RoundUp(rows, kernels.step), kTile);
    ds_panel = carver.Matrix(element, RoundUp(rows, kernels.step), kTile);
    scores = carver.Matrix(DType::kF32, rows, kTile);
    d_scores = carver.Matrix(DType::kF32, rows, kTile);
    dq = carver.Matrix(DType::kF32, rows, RoundUp(K, kernels.vector));
    dk = carver.Matrix(DType::kF32, Pieces(keys, kTile) * K, kTile);
    dv = carver.Matrix(DType::kF32, Pieces(keys, kTile) * K, kTile);
    statistics = carver.Matrix(DType::kF32, 2, RoundUp(rows, kTile));
    visible = carver.Matrix(DType::kI32, 2, rows);
  }
};

// The buffers that all workers share.
struct SharedGradients {
  MatrixView delta;   // (N, H) sums of d_o * o over each head
  MatrixView dk, dv;  // (parts * N, G * K) float32: the sums of every part of a group

  // length: of the longest sequence
  SharedGradients(Carver& carver, const AttentionShape& shape, std::int64_t rows,
                  std::int64_t kv_rows, std::int64_t length) {
    const std::int64_t parts = GradientCut(shape).parts(length);
    delta = carver.Matrix(DType::kF32, rows, shape.heads);
    if (parts == 1) return;
    dk = carver.Matrix(DType::kF32, parts * kv_rows, shape.kv_heads * shape.head_dim);
    dv = carver.Matrix(DType::kF32, parts * kv_rows, shape.kv_heads * shape.head_dim);
  }
};

class AttentionBackwardRun {
 public:
  AttentionBackwardRun(const Machine& machine, const ops::AttentionBackward& op)
      : machine_(machine), kernels_(machine.kernels), op_(op), shape_(op.shape), cut_(op.shape) {
    for (const AttentionSpan& span : op.spans) longest_ = std::max(longest_, span.kv_rows);
  }

  // The workspace that Run() will carve.
  WorkspaceSize Needs() const {
    Carver worker;
    const GradientScratch scratch(worker, kernels_, shape_, longest_);
    Carver carver;
    const SharedGradients shared(carver, shape_, op_.q.rows, op_.k.rows, longest_);
    return {carver.bytes(), worker.bytes()};
  }

  void Run() const {
    Carver carver(machine_.workspace.shared());
    const SharedGradients shared(carver, shape_, op_.q.rows, op_.k.rows, longest_);
    SumOutputs(shared.delta);
    const auto tasks = [&](std::int64_t s) {
      return shape_.kv_heads * cut_.parts(op_.spans[s].q_rows);
    };
    ParallelParts(machine_, std::ssize(op_.spans), tasks,
                  [&](std::int64_t s, std::int64_t index, int worker) {
                    Carver worker_carver(machine_.workspace.worker(worker));
                    const std::int64_t parts = cut_.parts(op_.spans[s].q_rows);
                    RunTask(op_.spans[s], index / parts, index % parts, shared,
                            GradientScratch(worker_carver, kernels_, shape_, longest_));
                  });
    AddParts(shared);
  }

 private:
  // delta = sum over each head of d_o * o, which the gradient of the softmax subtracts.
  void SumOutputs(const MatrixView& delta) const {
    const auto dots = [&](std::int64_t index, int) {
      const std::int64_t row = index * kSumRows;
      RowDots(op_.d_o, op_.o, delta, {row, std::min(row + kSumRows, op_.q.rows)});
    };
    machine_.context.ParallelFor(Pieces(op_.q.rows, kSumRows), std::ref(dots));
  }

  // dk and dv = the sums of their parts, in sequences that have several.
  void AddParts(const SharedGradients& shared) const {
    const auto tasks = [&](std::int64_t s) {
      return cut_.parts(op_.spans[s].q_rows) == 1 ? 0 : Pieces(op_.spans[s].kv_rows, kSumRows);
    };
    const auto sum = [&](std::int64_t s, std::int64_t index, int) {
      const AttentionSpan& span = op_.spans[s];
      const std::int64_t row = span.kv_begin + index * kSumRows;
      const std::int64_t rows = std::min(kSumRows, span.kv_begin + span.kv_rows - row);
      AddPartsOfRows(shared.dk, cut_.parts(span.q_rows), Rows(op_.dk, row, rows), row);
      AddPartsOfRows(shared.dv, cut_.parts(span.q_rows), Rows(op_.dv, row, rows), row);
    };
    ParallelParts(machine_, std::ssize(op_.spans), tasks, sum);
  }

  // out = the sum of the parts of rows from `row` on.
  void AddPartsOfRows(const MatrixView& sums, std::int64_t parts, const MatrixView& out,
                      std::int64_t row) const {
    for (std::int64_t part = 1; part < parts; ++part) {
      StoreTile(sums.Row<float>(part * op_.k.rows + row), sums.stride, true,
                Rows(sums, row, out.rows));
    }
    StoreTile(sums.Row<float>(row), sums.stride, false, out);
  }

  void RunTask(const AttentionSpan& span, std::int64_t g, std::int64_t part,
               const SharedGradients& shared, const GradientScratch& scratch) const {
    const std::int64_t K = shape_.head_dim;
    const std::int64_t tiles = Pieces(span.kv_rows, kTile);
    for (const MatrixView& sum : {scratch.dk, scratch.dv}) {
      std::fill_n(sum.Row<float>(0), tiles * K * kTile, 0.0f);
    }
    const std::int64_t blocks = Pieces(span.q_rows, cut_.queries);
    const std::int64_t ranges = cut_.ranges(span.q_rows);
    const std::int64_t range = part % ranges;
    const std::int64_t first_head = part / ranges * cut_.heads;  // of the group
    for (std::int64_t block = blocks * range / ranges; block < blocks * (range + 1) / ranges;
         ++block) {
      const std::int64_t first = block * cut_.queries;
      RunBlock(span,
               {.g = g,
                .head = g * cut_.group + first_head,
                .heads = std::min(cut_.heads, cut_.group - first_head),
                .first = first,
                .queries = std::min(cut_.queries, span.q_rows - first)},
               shared.delta, scratch);
    }
    // One part writes the result; several write separate rows.
    const bool whole = cut_.parts(span.q_rows) == 1;
    const MatrixView dk = whole ? op_.dk : Rows(shared.dk, part * op_.k.rows, op_.k.rows);
    const MatrixView dv = whole ? op_.dv : Rows(shared.dv, part * op_.k.rows, op_.k.rows);
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      const std::int64_t key = tile * kTile;
      const std::int64_t keys = std::min(kTile, span.kv_rows - key);
      const std::int64_t row = span.kv_begin + key;
      StoreTransposed(scratch.dk.Row<float>(tile * K), kTile, nullptr, false,
                      Block(dk, row, keys, g * K, K));
      StoreTransposed(scratch.dv.Row<float>(tile * K), kTile, nullptr, false,
                      Block(dv, row, keys, g * K, K));
    }
  }

  void RunBlock(const AttentionSpan& span, const QueryBlock& block, const MatrixView& delta,
                const GradientScratch& scratch) const {
    const std::int64_t K = shape_.head_dim;
    const std::int64_t n = span.q_begin + block.first;
    for (std::int64_t h = 0; h < block.heads; ++h) {
      const std::int64_t col = (block.head + h) * K;
      const std::int64_t row = h * block.queries;
      PackHead(Block(op_.q, n, block.queries, col, K), row, scratch.q, scratch.q_transposed);
      PackHead(Block(op_.d_o, n, block.queries, col, K), row, scratch.d_o, scratch.d_o_transposed);
      for (std::int64_t i = 0; i < block.queries; ++i) {
        scratch.statistics.Row<float>(0)[row + i] = op_.lse.Row<float>(n + i)[block.head + h];
        scratch.statistics.Row<float>(1)[row + i] = delta.Row<float>(n + i)[block.head + h];
      }
    }
    std::fill_n(scratch.dq.Row<float>(0), block.rows() * scratch.dq.stride, 0.0f);
    ForEachTile({shape_, span}, block, scratch.visible, [&](std::int64_t key, std::int64_t keys) {
      AddTile(Block(op_.k, span.kv_begin + key, keys, block.g * K, K),
              Block(op_.v, span.kv_begin + key, keys, block.g * K, K), block.rows(),
              key / kTile * K, scratch);
    });
    for (std::int64_t h = 0; h < block.heads; ++h) {
      StoreTile(scratch.dq.Row<float>(h * block.queries), scratch.dq.stride, false,
                Block(op_.dq, n, block.queries, (block.head + h) * K, K));
    }
  }

  // Packs the queries of one head as rows from `row` on of an operand, and as its columns.
  void PackHead(const ConstMatrixView& m, std::int64_t row, const MatrixView& operand,
                const MatrixView& transposed) const {
    kernels_.pack_rows(m, 1, At(operand, kernels_, row, 0), operand.stride);
    kernels_.pack_rows_transposed(m, At(transposed, kernels_, 0, row), transposed.stride);
  }

  // All that a tile of keys adds; row `sum` of dk and dv is its first.
  void AddTile(const ConstMatrixView& k, const ConstMatrixView& v, std::int64_t rows,
               std::int64_t sum, const GradientScratch& scratch) const {
    const std::int64_t K = shape_.head_dim;
    PackPanelsOfRows(kernels_, k, scratch.panels[0].data);
    PackPanelsOfRows(kernels_, v, scratch.panels[1].data);
    PackPanels(kernels_, k, scratch.panels[2].data);
    Multiply(scratch.q, rows, K, scratch.panels[0], k.rows, {scratch.scores});
    Multiply(scratch.d_o, rows, K, scratch.panels[1], k.rows, {scratch.d_scores});
    SoftmaxGradientTile({.rows = rows,
                         .cols = k.rows,
                         .scores = scratch.scores.Row<float>(0),
                         .first = scratch.visible.Row<std::int32_t>(0),
                         .last = scratch.visible.Row<std::int32_t>(1),
                         .scale = shape_.scale,
                         .softcap = shape_.softcap},
                        scratch.statistics.Row<float>(0), scratch.statistics.Row<float>(1),
                        scratch.d_scores.Row<float>(0));
    const ConstMatrixView p = {scratch.scores.data, DType::kF32, rows, k.rows, kTile};
    const ConstMatrixView ds = {scratch.d_scores.data, DType::kF32, rows, k.rows, kTile};
    kernels_.pack_rows(ds, 1, scratch.gradient.data, scratch.gradient.stride);
    PackPanels(kernels_, p, scratch.p_panel.data);
    PackPanels(kernels_, ds, scratch.ds_panel.data);
    Multiply(scratch.gradient, rows, k.rows, scratch.panels[2], K, {scratch.dq, true});
    Multiply(scratch.d_o_transposed, K, rows, scratch.p_panel, k.rows, {scratch.dv, true, sum});
    Multiply(scratch.q_transposed, K, rows, scratch.ds_panel, k.rows, {scratch.dk, true, sum});
  }

  // The destination of a product: rows from `row` on, which are overwritten or added to.
  struct Target {
    const MatrixView& sums;
    bool add = false;
    std::int64_t row = 0;
  };

  // to = [to +] left(rows, k) panels(k, lanes).
  void Multiply(const MatrixView& left, std::int64_t rows, std::int64_t k, const MatrixView& panels,
                std::int64_t lanes, const Target& to) const {
    MultiplyPanels(kernels_,
                   {.rows = rows,
                    .k = RoundUp(k, kernels_.step),
                    .a = left.data,
                    .a_stride = left.stride,
                    .panel = panels.data,
                    .c = to.sums.Row<float>(to.row),
                    .c_stride = to.sums.stride,
                    .add = to.add},
                   lanes);
  }

  const Machine& machine_;
  const Kernels& kernels_;
  const ops::AttentionBackward& op_;
  const AttentionShape& shape_;
  const GradientCut cut_;
  std::int64_t longest_ = 0;  // keys of a sequence
};

}  // namespace

WorkspaceSize AttentionBackwardWorkspace(const Kernels& kernels, const AttentionShape& shape,
                                         std::int64_t rows, std::int64_t length) {
  if (length == 0) return {};
  Carver worker;
  const GradientScratch scratch(worker, kernels, shape, length);
  Carver carver;
  const SharedGradients shared(carver, shape, rows, rows, length);
  return {carver.bytes(), worker.bytes()};
}

void AttentionBackward(const Machine& machine, const ops::AttentionBackward& op) {
  const AttentionBackwardRun backward(machine, op);
  machine.workspace.Check(backward.Needs());
  backward.Run();
}

}  // namespace qlora::cpu
