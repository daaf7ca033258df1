// The blocks in which attention is cut into tasks, and which keys the queries of a block see.
#ifndef QLORA_BACKEND_CPU_ATTENTION_ATTENTION_BLOCKS_H_
#define QLORA_BACKEND_CPU_ATTENTION_ATTENTION_BLOCKS_H_

#include <algorithm>

#include "backend/backend.h"
#include "backend/cpu/attention/attention_softmax.h"
#include "backend/cpu/views.h"

namespace qlora::cpu {

// The rows of a block, (heads of a group) x (queries), all meet one packed tile of keys and values.
inline constexpr std::int64_t kMostHeads = 8;
inline constexpr std::int64_t kQueryRows = 256;  // (heads) x (queries)
inline constexpr std::int64_t kMostQueries = 128;

// Queries of a block with this many heads, at most.
inline std::int64_t QueriesOfBlock(std::int64_t heads) {
  return std::min(kMostQueries, kQueryRows / heads / 16 * 16);
}

// How the query heads of a group, which reads one key/value head, are split.
struct HeadCut {
  // wanted: the least number of parts, as far as there are heads for them.
  HeadCut(const AttentionShape& shape, std::int64_t wanted)
      : group(shape.heads / shape.kv_heads),
        heads(std::min(kMostHeads, Pieces(group, wanted))),
        queries(QueriesOfBlock(heads)) {}

  std::int64_t group;    // query heads per key/value head
  std::int64_t heads;    // of a block at most
  std::int64_t queries;  // of a block at most

  std::int64_t head_parts() const { return Pieces(group, heads); }
};

// Some heads of the group that reads key/value head `g`, and some of their queries in a sequence.
// Rows are (head, query).
struct QueryBlock {
  std::int64_t g;
  std::int64_t head;  // the first head
  std::int64_t heads;
  std::int64_t first;  // the first query, counted from the start of the sequence
  std::int64_t queries;

  std::int64_t rows() const { return heads * queries; }
};

// The keys that a query of a sequence sees. Queries and keys count from the start of the sequence.
struct Visibility {
  const AttentionShape& shape;
  const AttentionSpan& span;

  std::int64_t LastKey(std::int64_t query) const { return span.kv_rows - span.q_rows + query; }
  std::int64_t FirstKey(std::int64_t query) const {
    return shape.window > 0 ? std::max<std::int64_t>(0, LastKey(query) - shape.window + 1) : 0;
  }
};

//        keys of a tile
//       first    last
//   r   . . # # # # . . .      row r of a block sees columns [first(r), last(r)) of a tile
//
// Calls body(key, keys) for each tile of keys that a block sees, with the visible columns of each
// row in `visible`, (2, rows) int32: first and last.
template <typename Body>
void ForEachTile(const Visibility& visibility, const QueryBlock& block, const MatrixView& visible,
                 const Body& body) {
  const std::int64_t end = visibility.LastKey(block.first + block.queries - 1) + 1;
  const std::int64_t begin = visibility.FirstKey(block.first) / kTile * kTile;
  std::int32_t* first = visible.Row<std::int32_t>(0);
  std::int32_t* last = visible.Row<std::int32_t>(1);
  for (std::int64_t key = begin; key < end; key += kTile) {
    const std::int64_t keys = std::min(kTile, end - key);
    const auto column = [&](std::int64_t k) { return std::clamp<std::int64_t>(k - key, 0, keys); };
    for (std::int64_t r = 0; r < block.rows(); ++r) {
      const std::int64_t query = block.first + r % block.queries;
      first[r] = column(visibility.FirstKey(query));
      last[r] = column(visibility.LastKey(query) + 1);
    }
    body(key, keys);
  }
}

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_ATTENTION_ATTENTION_BLOCKS_H_
