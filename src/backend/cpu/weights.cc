#include "backend/cpu/weights.h"

#include <functional>

#include "base/check.h"
#include "quant/decode.h"
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

// The scales of whole rows; room: as ScaleCount says.
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

// Any part of a row of any 4-bit matrix, in float32.
void DecodeRange(const QuantizedView& q, std::int64_t row, std::int64_t col, std::int64_t cols,
                 float* out) {
  std::int64_t begin = row * q.cols + col;
  const std::int64_t end = begin + cols;
  while (begin < end) {
    const std::int64_t block = BlockOfIndex(q, begin);
    const BlockRange range = RangeOfBlock(q, block);
    const std::int64_t stop = std::min(end, range.begin + range.count);
    float scale;
    LoadScales(q, block, 1, &scale);
    DecodeSpan(q.packed, begin, stop - begin, BlockValues(q.code, scale), out);
    out += stop - begin;
    begin = stop;
  }
}

std::int64_t PanelBytes(const Kernels& kernels, std::int64_t k) {
  return RoundUp(k, kernels.step) * kernels.panel * static_cast<std::int64_t>(kernels.bytes);
}

}  // namespace

bool IsChunked(const WeightView& weight) {
  const QuantizedView& q = weight.quantized;
  return !weight.is_dense() && q.cols % kChunk == 0 && q.block_size % kChunk == 0;
}

void PackPanels(const Kernels& kernels, const ConstMatrixView& in, std::byte* panels) {
  for (std::int64_t lane = 0; lane < in.cols; lane += kernels.panel) {
    const std::int64_t lanes = std::min(kernels.panel, in.cols - lane);
    kernels.pack_panel_of_columns(Block(in, 0, in.rows, lane, lanes), panels,
                                  RoundUp(lanes, kernels.vector));
    panels += PanelBytes(kernels, in.rows);
  }
}

void MultiplyPanels(const Kernels& kernels, const Product& product, std::int64_t lanes) {
  Product part = product;
  for (std::int64_t lane = 0; lane < lanes; lane += kernels.panel) {
    part.width = RoundUp(std::min(kernels.panel, lanes - lane), kernels.vector);
    part.c = product.c + lane;
    kernels.multiply(part);
    part.panel = static_cast<const std::byte*>(part.panel) + PanelBytes(kernels, product.k);
  }
}

WeightRows::WeightRows(const WeightView& weight, std::int64_t row, std::int64_t rows, float* scales)
    : weight_(weight), row_(row), rows_(rows) {
  const QuantizedView& q = weight.quantized;
  if (weight.prepacked != nullptr || !IsChunked(weight)) return;
  chunks_ = Chunks(q, row, rows, 0, q.cols);
  chunks_.scales = RowScales(q, row, rows, scales);
}

void WeightRows::Pack(const Kernels& kernels, std::int64_t col, std::int64_t cols, float* values,
                      void* out, std::int64_t stride) const {
  if (weight_.is_dense()) {
    return kernels.pack_rows(Block(weight_.dense, row_, rows_, col, cols), 1, out, stride);
  }
  if (weight_.prepacked != nullptr) return PackPrepacked(kernels, col, cols, out, stride);
  if (is_chunked()) {
    QuantizedChunks part = chunks_;
    part.packed += col / 2;
    part.scales = chunks_.scales.From(col / kChunk);
    part.chunks = cols / kChunk;
    return kernels.decode_rows(part, out, stride);
  }
  const QuantizedView& q = weight_.quantized;
  auto* to = static_cast<std::byte*>(out);
  for (std::int64_t r = 0; r < rows_; ++r) {
    DecodeRange(q, row_ + r, col, cols, values);
    kernels.pack_rows(MakeView<float>(values, 1, cols), 1, to, stride);
    to += static_cast<std::size_t>(stride) * kernels.bytes;
  }
}

void WeightRows::PackPrepacked(const Kernels& kernels, std::int64_t col, std::int64_t cols,
                               void* out, std::int64_t stride) const {
  constexpr std::int64_t kMostChunks = 8;  // that are unpacked at a time
  static_assert(kMostChunks % kPrepackedGroup == 0);
  QLORA_DCHECK(col % (kPrepackedGroup * kChunk) == 0);
  std::uint8_t packed[kMostChunks * kPrepackedChunkBytes];
  float scales[kMostChunks * kPrepackedRows];
  auto* to = static_cast<std::byte*>(out);
  for (std::int64_t r = 0; r < rows_; r += kPrepackedRows) {
    const PrepackedRows panel =
        RowsOfPrepacked(weight_.quantized, weight_.prepacked, row_ + r, kPrepackedRows);
    for (std::int64_t c = 0; c < cols / kChunk; c += kMostChunks) {
      const std::int64_t chunks = std::min(kMostChunks, cols / kChunk - c);
      kernels.unpack_panel(panel, col / kChunk + c, chunks, packed, scales);
      const QuantizedChunks part = {.packed = packed,
                                    .row_bytes = chunks * (kChunk / 2),
                                    .scales = {.values = scales, .stride = chunks},
                                    .code = panel.code,
                                    .rows = kPrepackedRows,
                                    .chunks = chunks};
      const std::int64_t place = r * stride + c * kChunk;
      kernels.decode_rows(part, to + static_cast<std::size_t>(place) * kernels.bytes, stride);
    }
  }
}

void MultiplyWeightPanels(const Kernels& kernels, const WeightView& weight, std::int64_t col,
                          std::int64_t cols, float* values, std::byte* panels,
                          const Product& product) {
  constexpr std::int64_t kScaledRows = 2048;  // so that kernels can work ahead; scales fit `values`
  static_assert(2 * kScaledRows <= kDecodedRows * 2 * kChunk);
  const QuantizedView& q = weight.quantized;
  const bool chunked = IsChunked(weight);
  const std::int64_t most = chunked ? kScaledRows : kDecodedRows;
  for (std::int64_t row = 0; row < weight.rows(); row += most) {
    const std::int64_t rows = std::min(most, weight.rows() - row);
    Product part = product;
    part.k = RoundUp(rows, kernels.step);
    part.a =
        static_cast<const std::byte*>(product.a) + static_cast<std::size_t>(row) * kernels.bytes;
    part.add = product.add || row > 0;
    if (chunked) {
      QuantizedChunks chunks = Chunks(q, row, rows, col, cols);
      LoadChunkScales(q, row, rows, col, chunks.chunks, values);
      chunks.scales = {.values = values, .stride = chunks.chunks};
      kernels.multiply_decoded_panels(chunks, panels, part);
      continue;
    }
    if (weight.is_dense()) {
      PackPanels(kernels, Block(weight.dense, row, rows, col, cols), panels);
    } else {
      for (std::int64_t r = 0; r < rows; ++r) {
        DecodeRange(q, row + r, col, cols, values + r * cols);
      }
      PackPanels(kernels, MakeView<float>(values, rows, cols), panels);
    }
    part.panel = panels;
    MultiplyPanels(kernels, part, cols);
  }
}

DotForm DotFormOf(const Kernels& kernels, const WeightView& weight, std::int64_t count) {
  if (weight.prepacked != nullptr) return DotForm::kPrepacked;
  if (!IsChunked(weight)) return DotForm::kRows;
  const bool worth_it = count >= kernels.fewest_repacked_rows;
  return worth_it && PrepackedBytes(weight.quantized) > 0 ? DotForm::kPrepacked : DotForm::kChunks;
}

std::int64_t MostDotRows(const Kernels& kernels, DotForm form) {
  if (form == DotForm::kRows) return kDotBatch;
  return form == DotForm::kChunks ? kernels.most_dot_rows : kernels.most_prepacked_rows;
}

void DotOperand::Pack(Context& context, DotForm form, const ConstMatrixView& x) const {
  const auto pack = form == DotForm::kRows     ? kernels.pack_dot_rows
                    : form == DotForm::kChunks ? kernels.pack_dot_chunks
                                               : kernels.pack_dot_prepacked;
  const auto task = [&](std::int64_t b, int) {
    const std::int64_t first = First(form, b);
    pack(Rows(x, first, First(form, b + 1) - first), Batch(form, b));
  };
  context.ParallelFor(batches(form), std::ref(task));
}

void DotWeightRows(const DotOperand& x, const WeightView& weight, std::int64_t row,
                   std::int64_t rows, const RowScratch& scratch, float* out,
                   std::int64_t out_stride) {
  const Kernels& kernels = x.kernels;
  const std::int64_t cols = weight.cols();
  const std::int64_t stride = RoundUp(cols, kernels.step);
  // dot(product) for `n` rows of the weight from `first` on and every batch of x.
  const auto each_batch = [&](DotForm form, std::int64_t first, std::int64_t n, const auto& dot) {
    for (std::int64_t b = 0; b < x.batches(form); ++b) {
      const std::int64_t m = x.First(form, b);
      dot(DotProduct{.rows = n,
                     .k = cols,
                     .count = x.First(form, b + 1) - m,
                     .x = x.Batch(form, b),
                     .out = out + m * out_stride + first,
                     .out_stride = out_stride});
    }
  };
  const auto dot_packed = [&](const DotProduct& p) {
    kernels.dot_rows({scratch.packed, ElementType(kernels), p.rows, cols, stride}, p);
  };
  if (DotFormOf(kernels, weight, x.count) == DotForm::kPrepacked) {
    // Several batches read a panel one after the other, from the caches: 8 K bytes of it, for K
    // columns, and 24 K (96 K in float32) of a batch of 12 (24) rows.
    const bool repack = weight.prepacked == nullptr;
    const std::int64_t most =
        !repack && x.batches(DotForm::kPrepacked) == 1 ? rows : kPrepackedRows;
    const QuantizedView& q = weight.quantized;
    if (repack) PrepackMap(q, scratch.prepacked);
    for (std::int64_t r = 0; r < rows; r += most) {
      const PrepackedRows part =
          repack ? PrepackRows(q, row + r, scratch.prepacked)
                 : RowsOfPrepacked(q, weight.prepacked, row + r, std::min(most, rows - r));
      each_batch(DotForm::kPrepacked, r, part.rows,
                 [&](const DotProduct& product) { kernels.dot_prepacked(part, product); });
    }
    return;
  }
  const bool as_it_is = weight.dense.dtype == DType::kBF16 ||
                        (weight.dense.dtype == DType::kF32 && kernels.reads_float_rows);
  if (weight.is_dense() && as_it_is) {
    const ConstMatrixView part = Rows(weight.dense, row, rows);
    return each_batch(DotForm::kRows, 0, rows,
                      [&](const DotProduct& product) { kernels.dot_rows(part, product); });
  }
  if (weight.is_dense()) {
    const std::int64_t most = scratch.packed_size / stride;
    for (std::int64_t r = 0; r < rows; r += most) {
      const std::int64_t n = std::min(most, rows - r);
      kernels.pack_rows(Rows(weight.dense, row + r, n), 1, scratch.packed, stride);
      each_batch(DotForm::kRows, r, n, dot_packed);
    }
    return;
  }
  // A few rows at a time: what it takes to prepare their scales overlaps with the products of the
  // rows before.
  for (std::int64_t r = 0; r < rows; r += kDotWeightRows) {
    const std::int64_t n = std::min(kDotWeightRows, rows - r);
    const WeightRows part(weight, row + r, n, scratch.scales);
    if (part.is_chunked()) {
      each_batch(DotForm::kChunks, r, n,
                 [&](const DotProduct& product) { kernels.dot_chunks(part.chunks(), product); });
      continue;
    }
    for (std::int64_t one = r; one < r + n; ++one) {
      WeightRows(weight, row + one, 1, scratch.scales)
          .Pack(kernels, 0, cols, scratch.values, scratch.packed, stride);
      each_batch(DotForm::kRows, one, 1, dot_packed);
    }
  }
}

}  // namespace qlora::cpu
