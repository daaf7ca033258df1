// Attention, forward. A task takes a block of queries and walks over the tiles of keys that they
// see:
//
//          keys: tiles of kTile columns
//   q      +------+------+------+--
//   rows   | #### | #### | ##   |       scores = q k^T, their softmax so far, o += p v
//          | #### | #### | ###  |
//          +------+------+------+--
//
// The largest score and the sum of each row are known only at the end, so the sums so far are
// rescaled whenever the largest score grows.
#include <algorithm>
#include <limits>

#include "backend/cpu/attention/attention.h"
#include "backend/cpu/attention/attention_blocks.h"
#include "backend/cpu/gemm/panels.h"
#include "backend/cpu/gemm/store_tile.h"

namespace qlora::cpu {
namespace {

// Scratch of one worker.
struct AttentionScratch {
  MatrixView left;         // (rows, K) q
  MatrixView probability;  // (rows, kTile) p
  MatrixView panels[2];    // of a tile of keys: k against q, and the columns of v
  MatrixView scores;       // (rows, kTile) float32
  MatrixView sums;         // (rows, K) float32: o
  MatrixView statistics;   // (2, rows) float32: largest and sum
  MatrixView visible;      // (2, rows) first visible column, and the one after the last

  AttentionScratch(Carver& carver, const Kernels& kernels, const AttentionShape& shape) {
    const DType element = ElementType(kernels);
    const HeadCut cut(shape, 1);
    const std::int64_t rows = cut.heads * cut.queries;
    const std::int64_t K = shape.head_dim;
    left = carver.Matrix(element, rows, PackedStride(kernels, K));
    probability = carver.Matrix(element, rows, PackedStride(kernels, kTile));
    for (MatrixView& panel : panels) {
      panel = carver.Matrix(element, RoundUp(K, kernels.panel), kTile);
    }
    scores = carver.Matrix(DType::kF32, rows, kTile);
    sums = carver.Matrix(DType::kF32, rows, RoundUp(K, kernels.vector));
    statistics = carver.Matrix(DType::kF32, 2, RoundUp(rows, kTile));
    visible = carver.Matrix(DType::kI32, 2, rows);
  }
};

class AttentionForwardRun {
 public:
  AttentionForwardRun(const Machine& machine, const ops::Attention& op)
      : machine_(machine),
        kernels_(machine.kernels),
        op_(op),
        shape_(op.shape),
        cut_(op.shape, 1) {}

  void Run() const {
    const std::span spans = op_.spans;
    ParallelParts(
        machine_, std::ssize(spans),
        [&](std::int64_t s) {
          return Pieces(spans[s].q_rows, cut_.queries) * shape_.kv_heads * cut_.head_parts();
        },
        [&](std::int64_t s, std::int64_t part, int worker) {
          Carver carver(machine_.workspace.worker(worker));
          RunBlock(spans[s], BlockAt(spans[s], part), AttentionScratch(carver, kernels_, shape_));
        });
  }

 private:
  // The last queries, which see the most keys, come first.
  QueryBlock BlockAt(const AttentionSpan& span, std::int64_t index) const {
    const std::int64_t pieces = Pieces(span.q_rows, cut_.queries);
    const std::int64_t part = index % cut_.head_parts();
    const std::int64_t g = index / cut_.head_parts() % shape_.kv_heads;
    const std::int64_t first =
        (pieces - 1 - index / cut_.head_parts() / shape_.kv_heads) * cut_.queries;
    return {.g = g,
            .head = g * cut_.group + part * cut_.heads,
            .heads = std::min(cut_.heads, cut_.group - part * cut_.heads),
            .first = first,
            .queries = std::min(cut_.queries, span.q_rows - first)};
  }

  void RunBlock(const AttentionSpan& span, const QueryBlock& block,
                const AttentionScratch& scratch) const {
    for (std::int64_t h = 0; h < block.heads; ++h) {
      kernels_.pack_rows(HeadOf(op_.q, span, block, h), 1,
                         At(scratch.left, kernels_, h * block.queries, 0), scratch.left.stride);
    }
    const RunningSoftmax state = {.largest = scratch.statistics.Row<float>(0),
                                  .sum = scratch.statistics.Row<float>(1),
                                  .values = scratch.sums.Row<float>(0),
                                  .stride = scratch.sums.stride,
                                  .width = shape_.head_dim};
    std::fill_n(state.largest, block.rows(), -std::numeric_limits<float>::infinity());
    std::fill_n(state.sum, block.rows(), 0.0f);
    std::fill_n(state.values, block.rows() * state.stride, 0.0f);
    ForEachTile({shape_, span}, block, scratch.visible, [&](std::int64_t key, std::int64_t keys) {
      AddKeys(span.kv_begin + key, keys, block, scratch, state);
    });
    for (std::int64_t h = 0; h < block.heads; ++h) FinishHead(span, block, h, state);
  }

  // The queries of head h of a block in q or o.
  template <typename View>
  View HeadOf(const View& m, const AttentionSpan& span, const QueryBlock& block,
              std::int64_t h) const {
    return Block(m, span.q_begin + block.first, block.queries, (block.head + h) * shape_.head_dim,
                 shape_.head_dim);
  }

  // One tile: scores, their softmax so far, and its product with the values.
  void AddKeys(std::int64_t row, std::int64_t keys, const QueryBlock& block,
               const AttentionScratch& scratch, const RunningSoftmax& state) const {
    const std::int64_t K = shape_.head_dim;
    const std::int64_t rows = block.rows();
    PackPanelsOfRows(kernels_, Block(op_.k, row, keys, block.g * K, K), scratch.panels[0].data);
    PackPanels(kernels_, Block(op_.v, row, keys, block.g * K, K), scratch.panels[1].data);
    MultiplyPanels(kernels_,
                   {.rows = rows,
                    .k = RoundUp(K, kernels_.step),
                    .a = scratch.left.data,
                    .a_stride = scratch.left.stride,
                    .panel = scratch.panels[0].data,
                    .c = scratch.scores.Row<float>(0),
                    .c_stride = kTile},
                   keys);
    SoftmaxTile({.rows = rows,
                 .cols = keys,
                 .scores = scratch.scores.Row<float>(0),
                 .first = scratch.visible.Row<std::int32_t>(0),
                 .last = scratch.visible.Row<std::int32_t>(1),
                 .scale = shape_.scale,
                 .softcap = shape_.softcap},
                state);
    kernels_.pack_rows({scratch.scores.data, DType::kF32, rows, keys, kTile}, 1,
                       scratch.probability.data, scratch.probability.stride);
    MultiplyPanels(kernels_,
                   {.rows = rows,
                    .k = RoundUp(keys, kernels_.step),
                    .a = scratch.probability.data,
                    .a_stride = scratch.probability.stride,
                    .panel = scratch.panels[1].data,
                    .c = state.values,
                    .c_stride = state.stride,
                    .add = true},
                   K);
  }

  // Writes o and lse of head h of a block.
  void FinishHead(const AttentionSpan& span, const QueryBlock& block, std::int64_t h,
                  const RunningSoftmax& state) const {
    const std::int64_t r = h * block.queries;
    const RunningSoftmax head = {.largest = state.largest + r,
                                 .sum = state.sum + r,
                                 .values = state.values + r * state.stride,
                                 .stride = state.stride,
                                 .width = state.width};
    FinishSoftmax(block.queries, head,
                  op_.lse.Row<float>(span.q_begin + block.first) + block.head + h, op_.lse.stride);
    StoreTile(head.values, state.stride, false, HeadOf(op_.o, span, block, h));
  }

  const Machine& machine_;
  const Kernels& kernels_;
  const ops::Attention& op_;
  const AttentionShape& shape_;
  const HeadCut cut_;
};

}  // namespace

WorkspaceSize AttentionForwardWorkspace(const Kernels& kernels, const AttentionShape& shape) {
  Carver worker;
  const AttentionScratch scratch(worker, kernels, shape);
  return {0, worker.bytes()};
}

void AttentionForward(const Machine& machine, const ops::Attention& op) {
  machine.workspace.Check(AttentionForwardWorkspace(machine.kernels, op.shape));
  AttentionForwardRun(machine, op).Run();
}

}  // namespace qlora::cpu
