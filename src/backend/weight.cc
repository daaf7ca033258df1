#include "backend/weight.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/check.h"
#include "base/matrix.h"
#include "ggml/decode.h"
#include "quant/decode.h"
#include "quant/first_non_finite.h"

namespace qlora {
namespace {

// Any part of a row. A block of scales may cross the ends of rows (cols not a multiple of the block
// size), so a row is decoded as pieces, each with the scale of one block.
void ReadFourBit(const QuantizedView& q, std::int64_t row, std::int64_t col, std::int64_t cols,
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

// Whole blocks straight to `out`; of a block that is cut, the values that are asked for.
void ReadBlocks(const BlockView& blocks, std::int64_t row, std::int64_t col, std::int64_t cols,
                float* out) {
  const BlockFormatInfo& info = InfoOf(blocks.format);
  const std::byte* data = blocks.Row(row);
  const std::int64_t end = col + cols;
  while (col < end) {
    const std::int64_t block = col / info.values;
    const std::int64_t skip = col % info.values;
    const std::int64_t whole = (end - col) / info.values;
    std::int64_t count;
    if (skip == 0 && whole > 0) {
      count = whole * info.values;
      DecodeBlocks(blocks.format, data + block * info.bytes, whole, out);
    } else {
      float values[kMaxBlockValues];
      count = std::min(info.values - skip, end - col);
      DecodeBlocks(blocks.format, data + block * info.bytes, 1, values);
      std::copy_n(values + skip, count, out);
    }
    out += count;
    col += count;
  }
}

}  // namespace

std::size_t BlockView::row_bytes() const {
  const BlockFormatInfo& info = InfoOf(format);
  return static_cast<std::size_t>(cols / info.values * info.bytes);
}

std::size_t BytesOf(const BlockView& blocks) { return blocks.rows * blocks.row_bytes(); }

std::size_t BytesOf(const WeightView& weight) {
  switch (weight.form()) {
    case WeightForm::kDense: {
      const ConstMatrixView& m = weight.dense;
      return BytesOf(m.dtype, (m.rows - 1) * m.stride + m.cols);
    }
    case WeightForm::kFourBit:
      return BytesOf(weight.quantized);
    case WeightForm::kBlocks:
      return BytesOf(weight.blocks);
  }
  return 0;
}

std::int64_t FirstNonFinite(Context& context, const WeightView& weight) {
  if (weight.form() == WeightForm::kDense) return FirstNonFinite(context, weight.dense);
  std::atomic<std::int64_t> first = weight.rows();
  context.ParallelFor(weight.rows(), [&](std::int64_t row, int) {
    std::vector<float> values(weight.cols());
    ReadRow(weight, row, 0, weight.cols(), values.data());
    if (std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) return;
    std::int64_t earlier = first;
    while (row < earlier && !first.compare_exchange_weak(earlier, row)) {
    }
  });
  return first < weight.rows() ? first * weight.cols() : -1;
}

bool IsAligned(const WeightView& weight) {
  // 4-bit values and blocks are read byte by byte; arrays beside them were aligned as they were
  // read.
  if (weight.form() != WeightForm::kDense) return true;
  const auto address = reinterpret_cast<std::uintptr_t>(weight.dense.data);
  return address % BytesOf(weight.dense.dtype, 1) == 0;
}

bool HaveOnePlace(const WeightView& a, const WeightView& b) {
  return a.dense.data == b.dense.data && a.quantized.packed == b.quantized.packed &&
         a.blocks.data == b.blocks.data;
}

void ReadRow(const WeightView& weight, std::int64_t row, std::int64_t col, std::int64_t cols,
             float* out) {
  switch (weight.form()) {
    case WeightForm::kDense: {
      const ConstMatrixView part = Columns(Rows(weight.dense, row, 1), col, cols);
      return ConvertToWide(part.data, part.dtype, 0, MakeView(out, 1, cols));
    }
    case WeightForm::kFourBit:
      return ReadFourBit(weight.quantized, row, col, cols, out);
    case WeightForm::kBlocks:
      return ReadBlocks(weight.blocks, row, col, cols, out);
  }
}

HostWeight::HostWeight(Memory& memory, const WeightView& weight, std::int64_t first,
                       std::int64_t count)
    : weight_(weight) {
  switch (weight.form()) {
    case WeightForm::kDense:
      weight_ = Rows(weight.dense, first, count);
      break;
    case WeightForm::kBlocks:
      weight_.blocks.data = weight.blocks.Row(first);
      weight_.blocks.rows = count;
      break;
    case WeightForm::kFourBit:
      begin_ = first;
      weight_.prepacked = nullptr;
      break;
  }
  ForEachPart(weight_, [&]<typename T>(const T*& data, std::size_t bytes) {
    copies_.emplace_back(memory, data, bytes);
    data = static_cast<const T*>(static_cast<const void*>(copies_.back().data()));
  });
}

}  // namespace qlora
