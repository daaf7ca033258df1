// How attention is cut into tasks, and the scratch memory of one.
#ifndef QLORA_BACKEND_CPU_ATTENTION_PLAN_H_
#define QLORA_BACKEND_CPU_ATTENTION_PLAN_H_

#include <algorithm>

#include "backend/backend.h"
#include "backend/cpu/attention_tile.h"
#include "backend/cpu/linear_plan.h"

namespace qlora::cpu {

// A task of the query side has all its rows, (heads of a group) x (queries), meet one packed tile
// of keys and values; a task of the key side has kKeyRows keys meet tiles of queries.
inline constexpr std::int64_t kMostHeads = 8;
inline constexpr std::int64_t kQueryRows = 256;  // (heads) x (queries)
inline constexpr std::int64_t kMostQueries = 128;
inline constexpr std::int64_t kKeyRows = 128;

struct AttentionCut {
  explicit AttentionCut(const AttentionShape& shape)
      : group(shape.heads / shape.kv_heads),
        heads(std::min(group, kMostHeads)),
        queries(std::min(kMostQueries, kQueryRows / heads / 16 * 16)) {}

  std::int64_t group;    // query heads per key/value head
  std::int64_t heads;    // of a task at most
  std::int64_t queries;  // of a task at most

  std::int64_t parts() const { return Pieces(group, heads); }  // of a group
};

// Scratch of one worker.
struct AttentionScratch {
  MatrixView left;         // (rows, K) q; or (keys, K) k
  MatrixView left_value;   // (rows, K) d_o; or (keys, K) v
  MatrixView probability;  // (rows, kTile) p
  MatrixView gradient;     // (rows, kTile) d_scores
  MatrixView panels[4];   // of a tile of keys (or queries) against `left`, `left_value`, and of its
                          // columns
  MatrixView scores;      // (rows, kTile) float32
  MatrixView d_scores;    // (rows, kTile) float32
  MatrixView sums[2];     // (rows, K) float32: o or dq; dk and dv
  MatrixView statistics;  // (2, rows) float32: largest and sum; or lse and delta
  MatrixView visible;     // (2, rows) first and last visible column

  AttentionScratch(Carver& carver, const Kernels& kernels, const AttentionShape& shape) {
    const DType element = ElementType(kernels);
    const AttentionCut cut(shape);
    const std::int64_t rows = std::max(cut.heads * cut.queries, kKeyRows);
    const std::int64_t K = shape.head_dim;
    left = carver.Matrix(element, rows, PackedStride(kernels, K));
    left_value = carver.Matrix(element, rows, PackedStride(kernels, K));
    probability = carver.Matrix(element, rows, PackedStride(kernels, kTile));
    gradient = carver.Matrix(element, rows, PackedStride(kernels, kTile));
    for (MatrixView& panel : panels) {
      panel = carver.Matrix(element, RoundUp(K, kernels.panel), kTile);
    }
    scores = carver.Matrix(DType::kF32, rows, kTile);
    d_scores = carver.Matrix(DType::kF32, rows, kTile);
    for (MatrixView& sum : sums) sum = carver.Matrix(DType::kF32, rows, RoundUp(K, kernels.vector));
    statistics = carver.Matrix(DType::kF32, 2, RoundUp(rows, kTile));
    visible = carver.Matrix(DType::kI32, 2, rows);
  }

  static std::byte* Bytes(const MatrixView& m) { return static_cast<std::byte*>(m.data); }
};

// The columns of a tile that row r sees: keys [key, key + cols) seen by query `query`, or queries
// [query, query + cols) that see key `key`; both count from the start of the span.
struct Visibility {
  const AttentionShape& shape;
  const AttentionSpan& span;

  // The last key that a query sees.
  std::int64_t LastKey(std::int64_t query) const { return span.kv_rows - span.q_rows + query; }
  std::int64_t FirstKey(std::int64_t query) const {
    return shape.window > 0 ? std::max<std::int64_t>(0, LastKey(query) - shape.window + 1) : 0;
  }
  // The queries [first, end) that see a key; may be empty.
  std::int64_t FirstQuery(std::int64_t key) const {
    return std::max<std::int64_t>(0, key - (span.kv_rows - span.q_rows));
  }
  std::int64_t EndQuery(std::int64_t key) const {
    const std::int64_t end = key - (span.kv_rows - span.q_rows) + shape.window;
    return shape.window > 0 ? std::clamp<std::int64_t>(end, 0, span.q_rows) : span.q_rows;
  }
};

inline std::int32_t TileColumn(std::int64_t index, std::int64_t tile_begin, std::int64_t cols) {
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(index - tile_begin, 0, cols));
}

// Panels whose lanes are the rows of `in`, at most kTile, Kernels::panel of them at a time.
void PackPanelsOfRows(const Kernels& kernels, const ConstMatrixView& in, std::byte* panels);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_ATTENTION_PLAN_H_
