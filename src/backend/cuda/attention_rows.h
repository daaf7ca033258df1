// Shared by the kernels of attention: their part of the work, rows of heads, which keys a row
// sees, and scores. For kernels only.
#ifndef QLORA_BACKEND_CUDA_ATTENTION_ROWS_H_
#define QLORA_BACKEND_CUDA_ATTENTION_ROWS_H_

#include "backend/cuda/attention_kernels.h"
#include "backend/cuda/row_reduce.h"

namespace qlora::cuda {

inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLn2 = 0.693147181f;

// The work of a block.
struct Item {
  SpanItems span;
  int tile = 0;
  int part = 0;
};
GPU_INLINE Item ItemOf(const LaunchItems& items, int index) {
  int s = 0;
  while (s + 1 < items.spans && items.span[s + 1].first_item <= index) ++s;
  Item item;
  item.span = items.span[s];
  index -= item.span.first_item;
  item.tile = index / item.span.splits;
  item.part = index - item.tile * item.span.splits;
  return item;
}

GPU_INLINE int RowsOf(const SpanItems& span, const HeadsArgs& heads) {
  return span.q_rows * heads.group;
}

// Rows of one key/value head, as the comment of attention_kernels.h numbers them. Keys are rows
// with a group of 1.
struct HeadRows {
  std::int64_t begin = 0;   // row of the matrix
  std::int64_t column = 0;  // of the first head
  int rows = 0;
  int group = 1;
  int head_dim = 0;

  GPU_INLINE std::int64_t RowAt(int r) const { return begin + r / group; }
  GPU_INLINE std::int64_t ColumnAt(int r) const {
    return column + static_cast<std::int64_t>(r % group) * head_dim;
  }
};
GPU_INLINE HeadRows QueryRows(const SpanItems& span, const HeadsArgs& heads, int kv_head) {
  return {span.q_begin, static_cast<std::int64_t>(kv_head) * heads.group * heads.head_dim,
          RowsOf(span, heads), heads.group, heads.head_dim};
}
GPU_INLINE HeadRows KeyRows(const SpanItems& span, const HeadsArgs& heads, int kv_head) {
  return {span.kv_begin, static_cast<std::int64_t>(kv_head) * heads.head_dim, span.kv_rows, 1,
          heads.head_dim};
}
// An (N, H) matrix of float32.
GPU_INLINE const float& OfHead(const ConstMatrixView& m, const HeadRows& rows, int kv_head, int r) {
  return Float(m, rows.RowAt(r), kv_head * rows.group + r % rows.group);
}
GPU_INLINE float& OfHead(const MatrixView& m, const HeadRows& rows, int kv_head, int r) {
  return Float(m, rows.RowAt(r), kv_head * rows.group + r % rows.group);
}

// The last key that row r sees; -1 behind the last row, which sees none.
GPU_INLINE int LastKey(const SpanItems& span, const HeadsArgs& heads, int r) {
  return r < RowsOf(span, heads) ? span.kv_rows - span.q_rows + r / heads.group : -1;
}
GPU_INLINE bool Sees(const HeadsArgs& heads, int last, int key) {
  return key <= last && key > last - heads.window;
}

// Keys that some row of [begin, end) sees, or rows that see some key of it.
struct Range {
  int begin = 0;
  int end = 0;
};
GPU_INLINE int Least(int a, int b) { return a < b ? a : b; }
GPU_INLINE int Most(int a, int b) { return a > b ? a : b; }
GPU_INLINE Range KeysSeenBy(const SpanItems& span, const HeadsArgs& heads, int begin, int end) {
  const int first = LastKey(span, heads, begin) - heads.window + 1;
  return {Most(0, first), LastKey(span, heads, Least(end, RowsOf(span, heads)) - 1) + 1};
}
GPU_INLINE Range RowsThatSee(const SpanItems& span, const HeadsArgs& heads, int begin, int end) {
  const int before = span.kv_rows - span.q_rows;  // keys before the first query
  const int first = Most(0, begin - before);
  const int last = Least(span.q_rows, end - before + heads.window - 1);
  return {first * heads.group, last * heads.group};
}

// The score in base 2 of a product q . k.
GPU_INLINE float Score2(const HeadsArgs& heads, float dot) {
  if (heads.softcap == 0) return dot * heads.scale_log2;
  return heads.softcap_log2 * tanhf(dot * heads.scale_over_cap);
}
// d capped score / d score.
GPU_INLINE float CapSlope(const HeadsArgs& heads, float score2) {
  if (heads.softcap == 0) return 1.0f;
  const float t = score2 / heads.softcap_log2;
  return 1.0f - t * t;
}

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_ATTENTION_ROWS_H_
