#include "model/gguf_rows.h"

#include <algorithm>
#include <numeric>

#include "config/families.h"

namespace qlora {
namespace {

// checkpoint  rotates (i, i + K / 2):   0 1 2 3 | 4 5 6 7     K = 8
// llama.cpp   rotates (2 i, 2 i + 1):   0 4 | 1 5 | 2 6 | 3 7
// Rows of q and k in this order give the same scores: both change places alike.
std::vector<std::int64_t> InterleavedOrder(std::int64_t rows, std::int64_t head_dim) {
  std::vector<std::int64_t> order;
  for (std::int64_t head = 0; head < rows; head += head_dim) {
    for (std::int64_t i = 0; i < head_dim / 2; ++i) {
      order.push_back(head + i);
      order.push_back(head + head_dim / 2 + i);
    }
  }
  return order;
}

// `size` rows for each of `heads`, the last of `rows`.
std::vector<std::int64_t> RowsOfHeads(const std::vector<std::int64_t>& heads, std::int64_t size,
                                      std::int64_t rows) {
  if (heads.empty()) return {};
  const std::int64_t before = rows - std::ssize(heads) * size;
  std::vector<std::int64_t> order(rows);
  std::iota(order.begin(), order.begin() + before, 0);
  for (std::int64_t i = before; i < rows; ++i) {
    order[i] = before + heads[(i - before) / size] * size + (i - before) % size;
  }
  return order;
}

// The rows of a checkpoint's tensor that one of several tensors of a file holds, in its order.
std::vector<std::int64_t> RowsOfPieces(const GgufSpelling& pieces, const std::string& tensor) {
  std::vector<std::int64_t> order;
  std::int64_t row = 0;
  for (const GgufPiece& piece : pieces) {
    if (piece.tensor == tensor) {
      order.resize(piece.of);
      std::iota(order.begin() + piece.first, order.begin() + piece.first + piece.rows, row);
    }
    row += piece.rows;
  }
  return order;
}

}  // namespace

std::vector<std::string> GgufTensorsOf(const ListedTensor& row) {
  std::vector<std::string> tensors;
  if (row.gguf.empty()) return tensors;
  for (const GgufPiece& piece : row.gguf[0]) {
    if (std::ranges::find(tensors, piece.tensor) == tensors.end()) tensors.push_back(piece.tensor);
  }
  return tensors;
}

LinearRows GgufRowsOf(const DecoderConfig& config, std::int64_t layer, const ListedTensor& row,
                      const std::string& tensor) {
  LinearRows rows{.order = {}, .columns = {}, .factor = row.gguf_factor};
  if (row.gguf[0].size() > 1) rows.order = RowsOfPieces(row.gguf[0], tensor);
  // The value heads of a model that was read from a GGUF file are in its order.
  const bool moves = row.head_rows > 0 && !config.delta_rule.tiled;
  const std::vector<std::int64_t> heads =
      moves ? GgufValueHeads(config) : std::vector<std::int64_t>{};
  switch (row.order) {
    case TensorOrder::kSame:
      break;
    case TensorOrder::kRotary:
      rows.order = InterleavedOrder(row.shape.out, config.layer(layer).head_dim);
      break;
    case TensorOrder::kValueHeads: {
      const bool is_vector = row.shape.out == 1;
      rows.order = RowsOfHeads(heads, row.head_rows, is_vector ? row.shape.in : row.shape.out);
      break;
    }
    case TensorOrder::kValueColumns:
      rows.columns = RowsOfHeads(heads, row.head_rows, row.shape.in);
      break;
  }
  return rows;
}

}  // namespace qlora
