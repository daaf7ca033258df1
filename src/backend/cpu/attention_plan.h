// How attention is cut into tasks, and the scratch memory of one.
#ifndef QLORA_BACKEND_CPU_ATTENTION_PLAN_H_
#define QLORA_BACKEND_CPU_ATTENTION_PLAN_H_

#include <algorithm>

#include "backend/backend.h"
#include "backend/cpu/attention_tile.h"
#include "backend/cpu/linear_plan.h"

namespace qlora::cpu {

// All rows of a task, (heads of a group) x (queries), meet one packed tile of keys and values.
inline constexpr std::int64_t kMostHeads = 8;
inline constexpr std::int64_t kQueryRows = 256;  // (heads) x (queries)
inline constexpr std::int64_t kMostQueries = 128;

inline std::int64_t QueriesOfTask(std::int64_t heads) {
  return std::min(kMostQueries, kQueryRows / heads / 16 * 16);
}

struct AttentionCut {
  explicit AttentionCut(const AttentionShape& shape)
      : group(shape.heads / shape.kv_heads),
        heads(std::min(group, kMostHeads)),
        queries(QueriesOfTask(heads)) {}

  std::int64_t group;    // query heads per key/value head
  std::int64_t heads;    // of a task at most
  std::int64_t queries;  // of a task at most

  std::int64_t parts() const { return Pieces(group, heads); }  // of a group
};

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
    const AttentionCut cut(shape);
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

// The keys that a query sees; both count from the start of the span.
struct Visibility {
  const AttentionShape& shape;
  const AttentionSpan& span;

  // The last key that a query sees.
  std::int64_t LastKey(std::int64_t query) const { return span.kv_rows - span.q_rows + query; }
  std::int64_t FirstKey(std::int64_t query) const {
    return shape.window > 0 ? std::max<std::int64_t>(0, LastKey(query) - shape.window + 1) : 0;
  }
};

inline std::int32_t TileColumn(std::int64_t index, std::int64_t tile_begin, std::int64_t cols) {
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(index - tile_begin, 0, cols));
}

// Panels whose lanes are the rows of `in`, at most kTile, Kernels::panel of them at a time.
void PackPanelsOfRows(const Kernels& kernels, const ConstMatrixView& in, std::byte* panels);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_ATTENTION_PLAN_H_
