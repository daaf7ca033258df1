#include "backend/cpu/weights.h"

#include "quant/decode.h"
#include "quant/layout.h"

namespace qlora::cpu {
namespace {

// Whether every 64 columns of a row, from a multiple of 64, are whole bytes with one scale.
bool IsChunked(const QuantizedView& q) {
  return q.cols % kChunk == 0 && q.block_size % kChunk == 0 && q.shifts == nullptr;
}

// Scales of `chunks` chunks from column `col` of each row: out(rows, chunks).
void LoadChunkScales(const QuantizedView& q, std::int64_t row, std::int64_t rows, std::int64_t col,
                     std::int64_t chunks, float* out) {
  if (q.block_size == kChunk) {  // one block per chunk, in row-major order
    const std::int64_t per_row = q.cols / kChunk;
    if (chunks == per_row) return LoadScales(q, row * per_row, rows * per_row, out);
    if (chunks == 1) return LoadScales(q, row * per_row + col / kChunk, rows, out, per_row);
    for (std::int64_t r = 0; r < rows; ++r) {
      LoadScales(q, (row + r) * per_row + col / kChunk, chunks, out + r * chunks);
    }
    return;
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < chunks; ++c) {
      LoadScales(q, BlockOfIndex(q, (row + r) * q.cols + col + c * kChunk), 1,
                 out + r * chunks + c);
    }
  }
}

QuantizedChunks Chunks(const QuantizedView& q, std::int64_t row, std::int64_t rows,
                       std::int64_t col, std::int64_t cols) {
  return {.packed = q.packed + (row * q.cols + col) / 2,
          .row_bytes = q.cols / 2,
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
    const float* shift = q.shifts == nullptr ? nullptr : q.shifts + block;
    DecodeSpan(q.packed, begin, stop - begin, BlockValues(q.code, scale, shift), out);
    out += stop - begin;
    begin = stop;
  }
}

std::int64_t PanelBytes(const Kernels& kernels, std::int64_t k) {
  return RoundUp(k, kernels.step) * kernels.panel * static_cast<std::int64_t>(kernels.bytes);
}

}  // namespace

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
  if (weight.is_dense() || !IsChunked(q)) return;
  LoadChunkScales(q, row, rows, 0, q.cols / kChunk, scales);
  chunks_ = Chunks(q, row, rows, 0, q.cols);
  chunks_.scales = scales;
  chunks_.scale_stride = q.cols / kChunk;
}

void WeightRows::Pack(const Kernels& kernels, std::int64_t col, std::int64_t cols, float* values,
                      void* out, std::int64_t stride) const {
  if (weight_.is_dense()) {
    return kernels.pack_rows(Block(weight_.dense, row_, rows_, col, cols), 1, out, stride);
  }
  if (is_chunked()) {
    QuantizedChunks part = chunks_;
    part.packed += col / 2;
    part.scales += col / kChunk;
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

void PackWeightPanels(const Kernels& kernels, const WeightView& weight, std::int64_t row,
                      std::int64_t rows, std::int64_t col, std::int64_t cols, float* values,
                      std::byte* panels) {
  if (weight.is_dense()) {
    return PackPanels(kernels, Block(weight.dense, row, rows, col, cols), panels);
  }
  const QuantizedView& q = weight.quantized;
  if (IsChunked(q)) {
    QuantizedChunks chunks = Chunks(q, row, rows, col, kChunk);
    LoadChunkScales(q, row, rows, col, 1, values);
    chunks.scale_stride = 1;
    chunks.scales = values;
    return kernels.decode_panels(chunks, panels);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    DecodeRange(q, row + r, col, cols, values + r * cols);
  }
  PackPanels(kernels, MakeView<float>(values, rows, cols), panels);
}

void DotWeightRows(const DotOperand& x, const WeightView& weight, std::int64_t row,
                   std::int64_t rows, const RowScratch& scratch, float* out,
                   std::int64_t out_stride) {
  const Kernels& kernels = x.kernels;
  const std::int64_t cols = weight.cols();
  DotProduct product = {
      .rows = rows, .k = cols, .count = x.count, .x = x.rows, .out = out, .out_stride = out_stride};
  if (weight.is_dense() && weight.dense.dtype == kernels.direct) {
    return kernels.dot_rows(Rows(weight.dense, row, rows).data, weight.dense.stride, product);
  }
  const std::int64_t stride = RoundUp(cols, kernels.step);
  if (weight.is_dense()) {
    const std::int64_t most = scratch.packed_size / stride;
    for (std::int64_t r = 0; r < rows; r += most, product.out += most) {
      product.rows = std::min(most, rows - r);
      kernels.pack_rows(Rows(weight.dense, row + r, product.rows), 1, scratch.packed, stride);
      kernels.dot_rows(scratch.packed, stride, product);
    }
    return;
  }
  // A few rows at a time: what it takes to decode their scales overlaps with the products of the
  // rows before.
  const std::int64_t end = row + rows;
  for (; row < end; row += product.rows, product.out += product.rows) {
    product.rows = std::min(kDotWeightRows, end - row);
    const WeightRows part(weight, row, product.rows, scratch.scales);
    if (part.is_chunked()) {
      product.x = x.chunks;
      kernels.dot_chunks(part.chunks(), product);
    } else {
      product.rows = 1;
      const WeightRows one(weight, row, 1, scratch.scales);
      one.Pack(kernels, 0, cols, scratch.values, scratch.packed, stride);
      kernels.dot_rows(scratch.packed, stride, product);
    }
  }
}

}  // namespace qlora::cpu
