// A task takes some heads of a group and some blocks of their queries in one sequence. Such a block
// meets every tile of keys that it sees once, in five products: scores, d_scores, and what they add
// to dq, dk and dv. dq is complete when its block is; dk and dv grow in the task's scratch.
#include <functional>

#include "backend/cpu/attention.h"
#include "backend/cpu/attention_plan.h"
#include "backend/cpu/store_tile.h"

namespace qlora::cpu {
namespace {

constexpr std::int64_t kSumRows = 32;  // of a task of the phases before and after
// The heads of a group, and then the queries, are split into parts until a sequence makes this many
// tasks, so that threads share it. Every part has sums of dk and dv of its own, which is what more
// parts cost. The cut of a sequence depends on nothing but itself.
constexpr std::int64_t kLeastTasks = 8;

struct GradientCut {
  explicit GradientCut(const AttentionShape& shape)
      : group(shape.heads / shape.kv_heads),
        wanted(Pieces(kLeastTasks, shape.kv_heads)),
        heads(std::min(kMostHeads, Pieces(group, wanted))),
        queries(QueriesOfTask(heads)) {}

  std::int64_t group;    // query heads per key/value head
  std::int64_t wanted;   // parts of a group
  std::int64_t heads;    // of a task at most
  std::int64_t queries;  // of a block at most

  std::int64_t head_parts() const { return Pieces(group, heads); }
  // Parts of the blocks of a sequence, as even as can be.
  std::int64_t ranges(std::int64_t length) const {
    return std::clamp<std::int64_t>(Pieces(wanted, head_parts()), 1,
                                    std::max<std::int64_t>(Pieces(length, queries), 1));
  }
  // Parts of a group.
  std::int64_t parts(std::int64_t length) const { return head_parts() * ranges(length); }
};

// Scratch of one worker; the rows of a block are (head, query).
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

// What all workers share.
struct Shared {
  MatrixView delta;   // (N, H) sums of d_o * o over each head
  MatrixView dk, dv;  // (parts * N, G * K) float32: the sums of every part of a group

  // length: of the longest sequence
  Shared(Carver& carver, const AttentionShape& shape, std::int64_t rows, std::int64_t kv_rows,
         std::int64_t length) {
    const std::int64_t parts = GradientCut(shape).parts(length);
    delta = carver.Matrix(DType::kF32, rows, shape.heads);
    if (parts == 1) return;
    dk = carver.Matrix(DType::kF32, parts * kv_rows, shape.kv_heads * shape.head_dim);
    dv = carver.Matrix(DType::kF32, parts * kv_rows, shape.kv_heads * shape.head_dim);
  }
};

struct Operands {
  ConstMatrixView d_o, q, k, v, o, lse;
  MatrixView dq, dk, dv;
};

class AttentionBackwardRun {
 public:
  AttentionBackwardRun(const Machine& machine, const AttentionShape& shape,
                       std::span<const AttentionSpan> spans, const Operands& operands)
      : machine_(machine),
        kernels_(machine.kernels),
        shape_(shape),
        cut_(shape),
        spans_(spans),
        t_(operands) {
    for (const AttentionSpan& span : spans) longest_ = std::max(longest_, span.kv_rows);
  }

  // What Run() will carve.
  WorkspaceSize Needs() const {
    Carver worker;
    const GradientScratch scratch(worker, kernels_, shape_, longest_);
    Carver carver;
    const Shared shared(carver, shape_, t_.q.rows, t_.k.rows, longest_);
    return {carver.bytes(), worker.bytes()};
  }

  void Run() const {
    Carver carver(machine_.workspace.shared());
    const Shared shared(carver, shape_, t_.q.rows, t_.k.rows, longest_);
    const auto dots = [&](std::int64_t index, int) {
      const std::int64_t row = index * kSumRows;
      RowDots(t_.d_o, t_.o, shared.delta, row, std::min(row + kSumRows, t_.q.rows));
    };
    machine_.context.ParallelFor(Pieces(t_.q.rows, kSumRows), std::ref(dots));

    const auto tasks = [&](const AttentionSpan& span) {
      return shape_.kv_heads * cut_.parts(span.q_rows);
    };
    ForSpans(tasks, [&](const AttentionSpan& span, std::int64_t index, int worker) {
      Carver worker_carver(machine_.workspace.worker(worker));
      const std::int64_t parts = cut_.parts(span.q_rows);
      RunTask(span, index / parts, index % parts, shared,
              GradientScratch(worker_carver, kernels_, shape_, longest_));
    });
    const auto sums = [&](const AttentionSpan& span) {
      return cut_.parts(span.q_rows) == 1 ? 0 : Pieces(span.kv_rows, kSumRows);
    };
    ForSpans(sums, [&](const AttentionSpan& span, std::int64_t index, int) {
      const std::int64_t row = index * kSumRows;
      const std::int64_t rows = std::min(kSumRows, span.kv_rows - row);
      const std::int64_t parts = cut_.parts(span.q_rows);
      AddParts(shared.dk, parts, span.kv_begin + row, rows, t_.dk);
      AddParts(shared.dv, parts, span.kv_begin + row, rows, t_.dv);
    });
  }

 private:
  // Calls run(span, index, worker) for every index in [0, tasks(span)) of every span.
  template <typename Tasks, typename Run>
  void ForSpans(const Tasks& tasks, const Run& run) const {
    std::int64_t count = 0;
    for (const AttentionSpan& span : spans_) count += tasks(span);
    const auto task = [&](std::int64_t index, int worker) {
      std::size_t s = 0;
      for (; index >= tasks(spans_[s]); ++s) index -= tasks(spans_[s]);
      run(spans_[s], index, worker);
    };
    machine_.context.ParallelFor(count, std::ref(task));
  }

  void RunTask(const AttentionSpan& span, std::int64_t g, std::int64_t part, const Shared& shared,
               const GradientScratch& scratch) const {
    const std::int64_t K = shape_.head_dim;
    const std::int64_t tiles = Pieces(span.kv_rows, kTile);
    for (const MatrixView& sum : {scratch.dk, scratch.dv}) {
      std::fill_n(sum.Row<float>(0), tiles * K * kTile, 0.0f);
    }
    const std::int64_t blocks = Pieces(span.q_rows, cut_.queries);
    const std::int64_t ranges = cut_.ranges(span.q_rows);
    const std::int64_t range = part % ranges;
    for (std::int64_t block = blocks * range / ranges; block < blocks * (range + 1) / ranges;
         ++block) {
      QueryBlock(span, g, part / ranges, block * cut_.queries, shared, scratch);
    }
    // One part writes the result; several write rows of their own.
    const bool whole = cut_.parts(span.q_rows) == 1;
    const MatrixView dk = whole ? t_.dk : Rows(shared.dk, part * t_.k.rows, t_.k.rows);
    const MatrixView dv = whole ? t_.dv : Rows(shared.dv, part * t_.k.rows, t_.k.rows);
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

  void QueryBlock(const AttentionSpan& span, std::int64_t g, std::int64_t head_part,
                  std::int64_t first, const Shared& shared, const GradientScratch& scratch) const {
    const std::int64_t K = shape_.head_dim;
    const std::int64_t head = g * cut_.group + head_part * cut_.heads;
    const std::int64_t heads = std::min(cut_.heads, cut_.group - head_part * cut_.heads);
    const std::int64_t queries = std::min(cut_.queries, span.q_rows - first);
    const std::int64_t rows = heads * queries;
    const std::int64_t n = span.q_begin + first;
    for (std::int64_t h = 0; h < heads; ++h) {
      PackHead(Block(t_.q, n, queries, (head + h) * K, K), h * queries, scratch.q,
               scratch.q_transposed);
      PackHead(Block(t_.d_o, n, queries, (head + h) * K, K), h * queries, scratch.d_o,
               scratch.d_o_transposed);
      for (std::int64_t i = 0; i < queries; ++i) {
        scratch.statistics.Row<float>(0)[h * queries + i] = t_.lse.Row<float>(n + i)[head + h];
        scratch.statistics.Row<float>(1)[h * queries + i] =
            shared.delta.Row<float>(n + i)[head + h];
      }
    }
    std::fill_n(scratch.dq.Row<float>(0), rows * scratch.dq.stride, 0.0f);
    const Visibility visibility{shape_, span};
    const std::int64_t end = visibility.LastKey(first + queries - 1) + 1;
    for (std::int64_t key = visibility.FirstKey(first) / kTile * kTile; key < end; key += kTile) {
      const std::int64_t keys = std::min(kTile, end - key);
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t query = first + r % queries;
        scratch.visible.Row<std::int32_t>(0)[r] = TileColumn(visibility.FirstKey(query), key, keys);
        scratch.visible.Row<std::int32_t>(1)[r] =
            TileColumn(visibility.LastKey(query) + 1, key, keys);
      }
      AddTile(Block(t_.k, span.kv_begin + key, keys, g * K, K),
              Block(t_.v, span.kv_begin + key, keys, g * K, K), rows, key / kTile * K, scratch);
    }
    for (std::int64_t h = 0; h < heads; ++h) {
      StoreTile(scratch.dq.Row<float>(h * queries), scratch.dq.stride, false,
                Block(t_.dq, n, queries, (head + h) * K, K));
    }
  }

  // Packs the queries of one head as rows [row, row + queries) of an operand and as its columns.
  void PackHead(const ConstMatrixView& m, std::int64_t row, const MatrixView& operand,
                const MatrixView& transposed) const {
    kernels_.pack_rows(m, 1, At(operand, kernels_, row, 0), operand.stride);
    kernels_.pack_rows_transposed(m, At(transposed, kernels_, 0, row), transposed.stride);
  }

  // All that a tile of keys adds; row `sum` of dk and dv is its first.
  void AddTile(const ConstMatrixView& k, const ConstMatrixView& v, std::int64_t rows,
               std::int64_t sum, const GradientScratch& scratch) const {
    const std::int64_t K = shape_.head_dim;
    PackPanelsOfRows(kernels_, k, At(scratch.panels[0], kernels_, 0, 0));
    PackPanelsOfRows(kernels_, v, At(scratch.panels[1], kernels_, 0, 0));
    PackPanels(kernels_, k, At(scratch.panels[2], kernels_, 0, 0));
    Multiply(scratch.q, rows, K, scratch.panels[0], k.rows, false, scratch.scores, 0);
    Multiply(scratch.d_o, rows, K, scratch.panels[1], k.rows, false, scratch.d_scores, 0);
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
    PackPanels(kernels_, p, At(scratch.p_panel, kernels_, 0, 0));
    PackPanels(kernels_, ds, At(scratch.ds_panel, kernels_, 0, 0));
    Multiply(scratch.gradient, rows, k.rows, scratch.panels[2], K, true, scratch.dq, 0);
    Multiply(scratch.d_o_transposed, K, rows, scratch.p_panel, k.rows, true, scratch.dv, sum);
    Multiply(scratch.q_transposed, K, rows, scratch.ds_panel, k.rows, true, scratch.dk, sum);
  }

  // Rows [row, row + rows) of out = [out +] left(rows, k) panels(k, lanes).
  void Multiply(const MatrixView& left, std::int64_t rows, std::int64_t k, const MatrixView& panels,
                std::int64_t lanes, bool add, const MatrixView& out, std::int64_t row) const {
    MultiplyPanels(kernels_,
                   {.rows = rows,
                    .k = RoundUp(k, kernels_.step),
                    .a = left.data,
                    .a_stride = left.stride,
                    .panel = panels.data,
                    .c = out.Row<float>(row),
                    .c_stride = out.stride,
                    .add = add},
                   lanes);
  }

  // out = the sum of the parts, for some rows.
  void AddParts(const MatrixView& sums, std::int64_t parts, std::int64_t row, std::int64_t rows,
                const MatrixView& out) const {
    for (std::int64_t part = 1; part < parts; ++part) {
      StoreTile(sums.Row<float>(part * t_.k.rows + row), sums.stride, true, Rows(sums, row, rows));
    }
    StoreTile(sums.Row<float>(row), sums.stride, false, Rows(out, row, rows));
  }

  const Machine& machine_;
  const Kernels& kernels_;
  const AttentionShape& shape_;
  const GradientCut cut_;
  std::span<const AttentionSpan> spans_;
  const Operands& t_;
  std::int64_t longest_ = 0;  // keys of a sequence
};

}  // namespace

WorkspaceSize AttentionBackwardWorkspace(const Kernels& kernels, const AttentionShape& shape,
                                         std::int64_t rows, std::int64_t length) {
  if (length == 0) return {};
  Carver worker;
  const GradientScratch scratch(worker, kernels, shape, length);
  Carver carver;
  const Shared shared(carver, shape, rows, rows, length);
  return {carver.bytes(), worker.bytes()};
}

void AttentionBackward(const Machine& machine, const AttentionShape& shape,
                       std::span<const AttentionSpan> spans, const ConstMatrixView& d_o,
                       const ConstMatrixView& q, const ConstMatrixView& k, const ConstMatrixView& v,
                       const ConstMatrixView& o, const ConstMatrixView& lse, const MatrixView& dq,
                       const MatrixView& dk, const MatrixView& dv) {
  const Operands operands = {d_o, q, k, v, o, lse, dq, dk, dv};
  const AttentionBackwardRun backward(machine, shape, spans, operands);
  machine.workspace.Check(backward.Needs());
  backward.Run();
}

}  // namespace qlora::cpu
