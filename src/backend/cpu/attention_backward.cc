// Two independent kinds of task recompute the probabilities from the saved lse: the key side sums
// dk and dv of its keys over all queries, the query side dq of its queries over all keys. That
// costs two products more than one shared pass would, and needs no sums across tasks.
#include <functional>

#include "backend/cpu/attention.h"
#include "backend/cpu/attention_plan.h"

namespace qlora::cpu {
namespace {

constexpr std::int64_t kDotRows = 32;  // of a task of the first phase

struct Operands {
  ConstMatrixView d_o, q, k, v, o, lse;
  MatrixView dq, dk, dv;
};

class Backward {
 public:
  Backward(const Machine& machine, const AttentionShape& shape,
           std::span<const AttentionSpan> spans, const Operands& operands)
      : machine_(machine),
        kernels_(machine.kernels),
        shape_(shape),
        cut_(shape),
        spans_(spans),
        t_(operands) {}

  void Run() {
    Carver carver(machine_.workspace.shared());
    delta_ = carver.Matrix(DType::kF32, t_.q.rows, shape_.heads);
    const auto dots = [&](std::int64_t index, int) {
      const std::int64_t row = index * kDotRows;
      RowDots(t_.d_o, t_.o, delta_, row, std::min(row + kDotRows, t_.q.rows));
    };
    machine_.context.ParallelFor(Pieces(t_.q.rows, kDotRows), std::ref(dots));

    std::int64_t tasks = 0;
    for (const AttentionSpan& span : spans_) tasks += KeyTasks(span) + QueryTasks(span);
    const auto task = [&](std::int64_t index, int worker) {
      std::size_t s = 0;
      for (; index >= KeyTasks(spans_[s]) + QueryTasks(spans_[s]); ++s) {
        index -= KeyTasks(spans_[s]) + QueryTasks(spans_[s]);
      }
      const AttentionSpan& span = spans_[s];
      Carver worker_carver(machine_.workspace.worker(worker));
      const AttentionScratch scratch(worker_carver, kernels_, shape_);
      if (index < KeyTasks(span)) {
        KeySide(span, index % shape_.kv_heads, index / shape_.kv_heads * kKeyRows, scratch);
      } else {
        index -= KeyTasks(span);
        const std::int64_t pieces = Pieces(span.q_rows, cut_.queries);
        QuerySide(span, index / cut_.parts() % shape_.kv_heads, index % cut_.parts(),
                  (pieces - 1 - index / cut_.parts() / shape_.kv_heads) * cut_.queries, scratch);
      }
    };
    machine_.context.ParallelFor(tasks, std::ref(task));
  }

 private:
  std::int64_t KeyTasks(const AttentionSpan& span) const {
    return Pieces(span.kv_rows, kKeyRows) * shape_.kv_heads;
  }
  std::int64_t QueryTasks(const AttentionSpan& span) const {
    return Pieces(span.q_rows, cut_.queries) * shape_.kv_heads * cut_.parts();
  }

  // dk and dv of keys [key, key + kKeyRows) of a span: tiles are (keys, queries).
  void KeySide(const AttentionSpan& span, std::int64_t g, std::int64_t key,
               const AttentionScratch& scratch) const {
    const std::int64_t K = shape_.head_dim;
    const std::int64_t rows = std::min(kKeyRows, span.kv_rows - key);
    PackLeft(t_.k, span.kv_begin + key, rows, g, 0, scratch.left);
    PackLeft(t_.v, span.kv_begin + key, rows, g, 0, scratch.left_value);
    for (const MatrixView& sum : scratch.sums) {
      std::fill_n(sum.Row<float>(0), rows * sum.stride, 0.0f);
    }
    const Visibility visibility{shape_, span};
    const std::int64_t begin = visibility.FirstQuery(key) / kTile * kTile;
    const std::int64_t end = visibility.EndQuery(key + rows - 1);
    for (std::int64_t h = g * cut_.group; h < (g + 1) * cut_.group; ++h) {
      for (std::int64_t query = begin; query < end; query += kTile) {
        const std::int64_t queries = std::min(kTile, end - query);
        const std::int64_t n = span.q_begin + query;
        for (std::int64_t i = 0; i < queries; ++i) {
          scratch.statistics.Row<float>(0)[i] = t_.lse.Row<float>(n + i)[h];
          scratch.statistics.Row<float>(1)[i] = delta_.Row<float>(n + i)[h];
        }
        // Later keys are seen by none of these queries.
        const std::int64_t seen = std::min(rows, visibility.LastKey(query + queries - 1) + 1 - key);
        for (std::int64_t r = 0; r < seen; ++r) {
          scratch.visible.Row<std::int32_t>(0)[r] =
              TileColumn(visibility.FirstQuery(key + r), query, queries);
          scratch.visible.Row<std::int32_t>(1)[r] =
              TileColumn(visibility.EndQuery(key + r), query, queries);
        }
        const ConstMatrixView q = Block(t_.q, n, queries, h * K, K);
        const ConstMatrixView d_o = Block(t_.d_o, n, queries, h * K, K);
        Gradients(q, d_o, seen, queries, true, scratch);
        AddProduct(scratch.probability, seen, d_o, scratch.panels[2], scratch.sums[1]);
        AddProduct(scratch.gradient, seen, q, scratch.panels[3], scratch.sums[0]);
      }
    }
    StoreTile(scratch.sums[0].Row<float>(0), scratch.sums[0].stride, false,
              Block(t_.dk, span.kv_begin + key, rows, g * K, K));
    StoreTile(scratch.sums[1].Row<float>(0), scratch.sums[1].stride, false,
              Block(t_.dv, span.kv_begin + key, rows, g * K, K));
  }

  // dq of queries [first, first + cut.queries) of some heads: tiles are ((head, query), keys).
  void QuerySide(const AttentionSpan& span, std::int64_t g, std::int64_t part, std::int64_t first,
                 const AttentionScratch& scratch) const {
    const std::int64_t K = shape_.head_dim;
    const std::int64_t head = g * cut_.group + part * cut_.heads;
    const std::int64_t heads = std::min(cut_.heads, cut_.group - part * cut_.heads);
    const std::int64_t queries = std::min(cut_.queries, span.q_rows - first);
    const std::int64_t rows = heads * queries;
    const std::int64_t n = span.q_begin + first;
    for (std::int64_t h = 0; h < heads; ++h) {
      PackLeft(t_.q, n, queries, head + h, h * queries, scratch.left);
      PackLeft(t_.d_o, n, queries, head + h, h * queries, scratch.left_value);
      for (std::int64_t i = 0; i < queries; ++i) {
        scratch.statistics.Row<float>(0)[h * queries + i] = t_.lse.Row<float>(n + i)[head + h];
        scratch.statistics.Row<float>(1)[h * queries + i] = delta_.Row<float>(n + i)[head + h];
      }
    }
    std::fill_n(scratch.sums[0].Row<float>(0), rows * scratch.sums[0].stride, 0.0f);
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
      const ConstMatrixView k = Block(t_.k, span.kv_begin + key, keys, g * K, K);
      const ConstMatrixView v = Block(t_.v, span.kv_begin + key, keys, g * K, K);
      Gradients(k, v, rows, keys, false, scratch);
      AddProduct(scratch.gradient, rows, k, scratch.panels[2], scratch.sums[0]);
    }
    for (std::int64_t h = 0; h < heads; ++h) {
      StoreTile(scratch.sums[0].Row<float>(h * queries), scratch.sums[0].stride, false,
                Block(t_.dq, n, queries, (head + h) * K, K));
    }
  }

  // Packs rows [row, row + rows) of one head as rows [at, at + rows) of a left operand.
  void PackLeft(const ConstMatrixView& m, std::int64_t row, std::int64_t rows, std::int64_t head,
                std::int64_t at, const MatrixView& left) const {
    const std::int64_t K = shape_.head_dim;
    kernels_.pack_rows(Block(m, row, rows, head * K, K), 1,
                       static_cast<std::byte*>(left.data) +
                           static_cast<std::size_t>(at * left.stride) * kernels_.bytes,
                       left.stride);
  }

  // From left, left_value and a tile of the other side: p and scaled d_scores, packed.
  void Gradients(const ConstMatrixView& other, const ConstMatrixView& other_value,
                 std::int64_t rows, std::int64_t cols, bool by_column,
                 const AttentionScratch& scratch) const {
    const auto multiply = [&](const MatrixView& left, const ConstMatrixView& right,
                              const MatrixView& panel, const MatrixView& out) {
      PackPanelsOfRows(kernels_, right, scratch.Bytes(panel));
      MultiplyPanels(kernels_,
                     {.rows = rows,
                      .k = RoundUp(shape_.head_dim, kernels_.step),
                      .a = left.data,
                      .a_stride = left.stride,
                      .panel = panel.data,
                      .c = out.Row<float>(0),
                      .c_stride = kTile},
                     cols);
    };
    multiply(scratch.left, other, scratch.panels[0], scratch.scores);
    multiply(scratch.left_value, other_value, scratch.panels[1], scratch.d_scores);
    SoftmaxGradientTile({.rows = rows,
                         .cols = cols,
                         .scores = scratch.scores.Row<float>(0),
                         .first = scratch.visible.Row<std::int32_t>(0),
                         .last = scratch.visible.Row<std::int32_t>(1),
                         .scale = shape_.scale,
                         .softcap = shape_.softcap},
                        {.lse = scratch.statistics.Row<float>(0),
                         .delta = scratch.statistics.Row<float>(1),
                         .by_column = by_column},
                        scratch.d_scores.Row<float>(0));
    kernels_.pack_rows({scratch.scores.data, DType::kF32, rows, cols, kTile}, 1,
                       scratch.probability.data, scratch.probability.stride);
    kernels_.pack_rows({scratch.d_scores.data, DType::kF32, rows, cols, kTile}, 1,
                       scratch.gradient.data, scratch.gradient.stride);
  }

  // sum(rows, K) += left(rows, in.rows) in(in.rows, K).
  void AddProduct(const MatrixView& left, std::int64_t rows, const ConstMatrixView& in,
                  const MatrixView& panel, const MatrixView& sum) const {
    PackPanels(kernels_, in, static_cast<std::byte*>(panel.data));
    MultiplyPanels(kernels_,
                   {.rows = rows,
                    .k = RoundUp(in.rows, kernels_.step),
                    .a = left.data,
                    .a_stride = left.stride,
                    .panel = panel.data,
                    .c = sum.Row<float>(0),
                    .c_stride = sum.stride,
                    .add = true},
                   in.cols);
  }

  const Machine& machine_;
  const Kernels& kernels_;
  const AttentionShape& shape_;
  const AttentionCut cut_;
  std::span<const AttentionSpan> spans_;
  const Operands& t_;
  MatrixView delta_;  // (N, H) sums of d_o * o over each head
};

}  // namespace

void AttentionBackward(const Machine& machine, const AttentionShape& shape,
                       std::span<const AttentionSpan> spans, const ConstMatrixView& d_o,
                       const ConstMatrixView& q, const ConstMatrixView& k, const ConstMatrixView& v,
                       const ConstMatrixView& o, const ConstMatrixView& lse, const MatrixView& dq,
                       const MatrixView& dk, const MatrixView& dv) {
  machine.workspace.Check(AttentionWorkspace(machine.kernels, shape, q.rows));
  const Operands operands = {d_o, q, k, v, o, lse, dq, dk, dv};
  Backward(machine, shape, spans, operands).Run();
}

}  // namespace qlora::cpu
