#include "backend/cpu/gemm/weight_rows.h"

#include <algorithm>

#include "backend/cpu/gemm/panels.h"
#include "backend/cpu/gemm/prepacked.h"
#include "base/check.h"
#include "quant/double_quant.h"
#include "quant/kernels.h"
#include "quant/layout.h"

namespace qlora::cpu {
namespace {

// Scales of `chunks` chunks from column `col` of each row: out(rows, chunks).
void LoadChunkScales(const QuantizedView& q, std::int64_t row, std::int64_t rows, std::int64_t col,
                     std::int64_t chunks, float* out) {
  if (q.block_size == kChunk) {  // one block per chunk, in row-major order
    const std::int64_t per_row = q.cols / kChunk;
    if (chunks == per_row) return LoadScales(q, row * per_row, rows * per_row, out);
    return LoadScaleColumns(q, row * per_row + col / kChunk, per_row, rows, chunks, out);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < chunks; ++c) {
      LoadScales(q, BlockOfIndex(q, (row + r) * q.cols + col + c * kChunk), 1,
                 out + r * chunks + c);
    }
  }
}

// The scales of whole rows; room: WeightRows::ScaleCount floats. The usual double quantization is
// not decoded scale by scale: a table of the 256 scales that the codes of a nested block can mean
// serves 256 chunks.
ChunkScales RowScales(const QuantizedView& q, std::int64_t row, std::int64_t rows, float* room) {
  const std::int64_t per_row = q.cols / kChunk;
  constexpr std::int64_t kNested = ChunkScales::kNestedBlock;
  if (q.scale_type != ScaleType::kDoubleBnb || q.block_size != kChunk ||
      q.nested.block_size != kNested) {
    LoadChunkScales(q, row, rows, 0, per_row, room);
    return {.values = room, .stride = per_row};
  }
  const std::int64_t first = row * per_row;
  const std::int64_t block = first / kNested;
  // Rows of the weight need not begin where nested blocks do: `first % kNested` codes of the first
  // block belong to rows above, and At() adds that offset before it picks a table.
  for (std::int64_t b = block; b * kNested < first + rows * per_row; ++b) {
    TabulateScales(q, b, room + (b - block) * kNested);
  }
  return {.values = room,
          .stride = per_row,
          .codes = static_cast<const std::uint8_t*>(q.scales) + first,
          .first = first % kNested};
}

QuantizedChunks Chunks(const QuantizedView& q, std::int64_t row, std::int64_t rows,
                       std::int64_t col, std::int64_t cols) {
  return {.packed = q.packed + (row * q.cols + col) / 2,
          .row_bytes = q.cols / 2,
          .scales = {},
          .code = q.code,
          .rows = rows,
          .chunks = cols / kChunk};
}

// Rows of a weight that are decoded to panels at a time. Chunks have more, so that kernels can
// decode ahead of their products; their scales fill `values`.
constexpr std::int64_t kScaledRows = 2048;
static_assert(2 * kScaledRows <= kDecodedRows * 2 * kChunk);

// The kernels for a weight in blocks; null if it is of another form, or they have to be decoded
// first.
const BlockKernels* BlockKernelsOf(const Kernels& kernels, const WeightView& weight) {
  return weight.form() == WeightForm::kBlocks ? kernels.of_blocks(weight.blocks.format) : nullptr;
}

BlockView BlockRows(const BlockView& blocks, std::int64_t row, std::int64_t rows) {
  BlockView out = blocks;
  out.data = blocks.Row(row);
  out.rows = rows;
  return out;
}

}  // namespace

bool IsChunked(const WeightView& weight) {
  const QuantizedView& q = weight.quantized;
  return weight.form() == WeightForm::kFourBit && q.cols % kChunk == 0 &&
         q.block_size % kChunk == 0;
}

WeightRows::WeightRows(const WeightView& weight, std::int64_t row, std::int64_t rows, float* scales)
    : weight_(weight), row_(row), rows_(rows) {
  const QuantizedView& q = weight.quantized;
  if (weight.is_reordered() || !IsChunked(weight)) return;
  chunks_ = Chunks(q, row, rows, 0, q.cols);
  chunks_.scales = RowScales(q, row, rows, scales);
}

void WeightRows::Pack(const Kernels& kernels, std::int64_t col, std::int64_t cols, float* values,
                      void* out, std::int64_t stride) const {
  if (weight_.form() == WeightForm::kDense) {
    return kernels.pack_rows(Block(weight_.dense, row_, rows_, col, cols), 1, out, stride);
  }
  if (weight_.is_reordered()) return PackPrepacked(kernels, col, cols, out, stride);
  if (is_chunked()) {
    QuantizedChunks part = chunks_;
    part.packed = chunks_.At(0, col / kChunk);
    // Column offsets are whole chunks here; no chunk is decoded in part.
    part.scales = chunks_.scales.From(col / kChunk);
    part.chunks = cols / kChunk;
    return kernels.decode_rows(part, out, stride);
  }
  if (const BlockKernels* blocks = BlockKernelsOf(kernels, weight_)) {
    return blocks->decode_rows(BlockRows(weight_.blocks, row_, rows_), col, cols, out, stride);
  }
  auto* to = static_cast<std::byte*>(out);
  for (std::int64_t r = 0; r < rows_; ++r, to += stride * kernels.bytes) {
    ReadRow(weight_, row_ + r, col, cols, values);
    kernels.pack_rows(MakeView<float>(values, 1, cols), 1, to, stride);
  }
}

// Some chunks of a panel at a time become row-major again, from which decode_rows reads them.
void WeightRows::PackPrepacked(const Kernels& kernels, std::int64_t col, std::int64_t cols,
                               void* out, std::int64_t stride) const {
  constexpr std::int64_t kMostChunks = 8;
  static_assert(kMostChunks % kPrepackedGroup == 0);
  QLORA_DCHECK(col % (kPrepackedGroup * kChunk) == 0);
  std::uint8_t packed[kMostChunks * kPrepackedChunkBytes];
  float scales[kMostChunks * kPrepackedRows];
  const PrepackedPanels panels(*kernels.prepacked, weight_, nullptr);
  auto* to = static_cast<std::byte*>(out);
  for (std::int64_t r = 0; r < rows_; r += kPrepackedRows) {
    const PrepackedRows panel = panels.Rows(row_ + r, kPrepackedRows);
    for (std::int64_t c = 0; c < cols / kChunk; c += kMostChunks) {
      const std::int64_t chunks = std::min(kMostChunks, cols / kChunk - c);
      kernels.prepacked->unpack_panel(panel, col / kChunk + c, chunks, packed, scales);
      const QuantizedChunks part = {.packed = packed,
                                    .row_bytes = chunks * kChunkBytes,
                                    .scales = {.values = scales, .stride = chunks},
                                    .code = panel.code,
                                    .rows = kPrepackedRows,
                                    .chunks = chunks};
      kernels.decode_rows(part, to + (r * stride + c * kChunk) * kernels.bytes, stride);
    }
  }
}

//                columns
//              +---------+
//              | weight  | rows [row, row + rows): k of one visit to the sums
//   product.a  +---------+
//   (rows, k)  | ...     |
void MultiplyWeightColumns(const Kernels& kernels, const WeightColumns& columns, float* values,
                           void* panels, const Product& product) {
  const auto& [weight, col, cols] = columns;
  const bool chunked = IsChunked(weight);
  const std::int64_t most = chunked ? kScaledRows : kDecodedRows;
  for (std::int64_t row = 0; row < weight.rows(); row += most) {
    const std::int64_t rows = std::min(most, weight.rows() - row);
    ConstMatrixView next;  // whose rows are pages apart
    Product part = product;
    part.k = RoundUp(rows, kernels.step);
    part.a = static_cast<const std::byte*>(product.a) + row * kernels.bytes;
    part.add = product.add || row > 0;
    if (chunked) {
      QuantizedChunks chunks = Chunks(weight.quantized, row, rows, col, cols);
      LoadChunkScales(weight.quantized, row, rows, col, chunks.chunks, values);
      chunks.scales = {.values = values, .stride = chunks.chunks};
      kernels.multiply_decoded_panels(chunks, panels, part);
      continue;
    }
    if (const BlockKernels* blocks = BlockKernelsOf(kernels, weight)) {
      blocks->decode_panels(BlockRows(weight.blocks, row, rows), col, cols, panels);
    } else {
      ConstMatrixView in = MakeView<float>(values, rows, cols);
      if (weight.form() == WeightForm::kDense) {
        in = Block(weight.dense, row, rows, col, cols);
        const std::int64_t end = row + rows;
        next = Block(weight.dense, end, std::min(most, weight.rows() - end), col, cols);
      } else {
        for (std::int64_t r = 0; r < rows; ++r) {
          ReadRow(weight, row + r, col, cols, values + r * cols);
        }
      }
      PackPanels(kernels, in, panels);
    }
    part.panel = panels;
    MultiplyPanels(kernels, part, cols, next);
  }
}

}  // namespace qlora::cpu
