#include <functional>
#include <limits>

#include "backend/cpu/attention.h"
#include "backend/cpu/attention_plan.h"
#include "backend/cpu/store_tile.h"

namespace qlora::cpu {
namespace {

class AttentionForwardRun {
 public:
  AttentionForwardRun(const Machine& machine, const AttentionShape& shape,
                      std::span<const AttentionSpan> spans, const ConstMatrixView& q,
                      const ConstMatrixView& k, const ConstMatrixView& v, const MatrixView& o,
                      const MatrixView& lse)
      : machine_(machine),
        kernels_(machine.kernels),
        shape_(shape),
        cut_(shape),
        spans_(spans),
        q_(q),
        k_(k),
        v_(v),
        o_(o),
        lse_(lse) {}

  void Run() const {
    std::int64_t tasks = 0;
    for (const AttentionSpan& span : spans_) tasks += TasksOf(span);
    const auto task = [&](std::int64_t index, int worker) {
      std::size_t s = 0;
      for (; index >= TasksOf(spans_[s]); ++s) index -= TasksOf(spans_[s]);
      Carver carver(machine_.workspace.worker(worker));
      RunTask(spans_[s], index, AttentionScratch(carver, kernels_, shape_));
    };
    machine_.context.ParallelFor(tasks, std::ref(task));
  }

 private:
  std::int64_t TasksOf(const AttentionSpan& span) const {
    return Pieces(span.q_rows, cut_.queries) * shape_.kv_heads * cut_.parts();
  }

  // The last queries, which see the most keys, come first.
  void RunTask(const AttentionSpan& span, std::int64_t index,
               const AttentionScratch& scratch) const {
    const std::int64_t pieces = Pieces(span.q_rows, cut_.queries);
    const std::int64_t part = index % cut_.parts();
    const std::int64_t g = index / cut_.parts() % shape_.kv_heads;
    const std::int64_t first = (pieces - 1 - index / cut_.parts() / shape_.kv_heads) * cut_.queries;
    const std::int64_t head = g * cut_.group + part * cut_.heads;
    const std::int64_t heads = std::min(cut_.heads, cut_.group - part * cut_.heads);
    const std::int64_t queries = std::min(cut_.queries, span.q_rows - first);
    const std::int64_t K = shape_.head_dim;
    const std::int64_t rows = heads * queries;
    for (std::int64_t h = 0; h < heads; ++h) {
      kernels_.pack_rows(Block(q_, span.q_begin + first, queries, (head + h) * K, K), 1,
                         At(scratch.left, kernels_, h * queries, 0), scratch.left.stride);
    }
    const RunningSoftmax state = {.largest = scratch.statistics.Row<float>(0),
                                  .sum = scratch.statistics.Row<float>(1),
                                  .values = scratch.sums.Row<float>(0),
                                  .stride = scratch.sums.stride,
                                  .width = K};
    std::fill_n(state.largest, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(state.sum, rows, 0.0f);
    std::fill_n(state.values, rows * state.stride, 0.0f);

    const Visibility visibility{shape_, span};
    const std::int64_t end = visibility.LastKey(first + queries - 1) + 1;
    for (std::int64_t key = visibility.FirstKey(first) / kTile * kTile; key < end; key += kTile) {
      const std::int64_t keys = std::min(kTile, end - key);
      std::int32_t* lo = scratch.visible.Row<std::int32_t>(0);
      std::int32_t* hi = scratch.visible.Row<std::int32_t>(1);
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t query = first + r % queries;
        lo[r] = TileColumn(visibility.FirstKey(query), key, keys);
        hi[r] = TileColumn(visibility.LastKey(query) + 1, key, keys);
      }
      AddKeys(span.kv_begin + key, keys, g, rows, scratch, state);
    }
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t r = h * queries;
      const RunningSoftmax part_state = {.largest = state.largest + r,
                                         .sum = state.sum + r,
                                         .values = state.values + r * state.stride,
                                         .stride = state.stride,
                                         .width = K};
      FinishSoftmax(queries, part_state, lse_.Row<float>(span.q_begin + first) + head + h,
                    lse_.stride);
      StoreTile(part_state.values, state.stride, false,
                Block(o_, span.q_begin + first, queries, (head + h) * K, K));
    }
  }

  // One tile: scores, their softmax so far, and its product with the values.
  void AddKeys(std::int64_t row, std::int64_t keys, std::int64_t g, std::int64_t rows,
               const AttentionScratch& scratch, const RunningSoftmax& state) const {
    const std::int64_t K = shape_.head_dim;
    PackPanelsOfRows(kernels_, Block(k_, row, keys, g * K, K),
                     At(scratch.panels[0], kernels_, 0, 0));
    PackPanels(kernels_, Block(v_, row, keys, g * K, K), At(scratch.panels[1], kernels_, 0, 0));
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

  const Machine& machine_;
  const Kernels& kernels_;
  const AttentionShape& shape_;
  const AttentionCut cut_;
  std::span<const AttentionSpan> spans_;
  const ConstMatrixView& q_;
  const ConstMatrixView& k_;
  const ConstMatrixView& v_;
  const MatrixView& o_;
  const MatrixView& lse_;
};

}  // namespace

void PackPanelsOfRows(const Kernels& kernels, const ConstMatrixView& in, std::byte* panels) {
  for (std::int64_t lane = 0; lane < in.rows; lane += kernels.panel) {
    const std::int64_t lanes = std::min(kernels.panel, in.rows - lane);
    kernels.pack_panel_of_rows(Rows(in, lane, lanes), panels, RoundUp(lanes, kernels.vector));
    panels +=
        static_cast<std::size_t>(RoundUp(in.cols, kernels.step) * kernels.panel) * kernels.bytes;
  }
}

WorkspaceSize AttentionForwardWorkspace(const Kernels& kernels, const AttentionShape& shape) {
  Carver worker;
  const AttentionScratch scratch(worker, kernels, shape);
  return {0, worker.bytes()};
}

void AttentionForward(const Machine& machine, const AttentionShape& shape,
                      std::span<const AttentionSpan> spans, const ConstMatrixView& q,
                      const ConstMatrixView& k, const ConstMatrixView& v, const MatrixView& o,
                      const MatrixView& lse) {
  machine.workspace.Check(AttentionForwardWorkspace(machine.kernels, shape));
  AttentionForwardRun(machine, shape, spans, q, k, v, o, lse).Run();
}

}  // namespace qlora::cpu
