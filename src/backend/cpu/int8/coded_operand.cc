#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/int8/coded_operand.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <hwy/cache_control.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/gemm/weight_rows.h"
#include "backend/cpu/int8/coded_chunks.h"
#include "backend/cpu/int8/coded_operand.h"
#include "backend/cpu/lanes-inl.h"
#include "quant/double_quant.h"
#include "quant/layout.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {

// As int8::ScaleOfRow for rows of a 4-bit weight, of which each touches `count` blocks with these
// scales (rows, count). Where no scale is above the mean that often, the largest one gives the
// scale of the row; the sum, which is not exact, is off by less than the margin.
void ScaleRows(const WeightView& weight, std::int64_t row, std::int64_t rows, const float* scales,
               std::int64_t count, int8::RowScale* out) {
  constexpr std::int64_t kMostScales = 1 << 16;
  const float largest_code = int8::LargestMagnitude({weight.quantized.code, 16});
  for (std::int64_t r = 0; r < rows; ++r, scales += count) {
    Largest largest;
    Sum sum;
    ForEachVector(count, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto scale = hn::Abs(hn::LoadU(d, scales + i));
      largest.Add(d, scale);
      sum.Add(d, scale);
    });
    const float top = largest.Total();
    const double total = sum.Total();
    if (count <= kMostScales && std::isfinite(total) &&
        top * static_cast<double>(count) < 0.99 * int8::kMostOfMean * total) {
      out[r] = {int8::ScaleOfLargest(top * largest_code)};
    } else {
      out[r] = int8::ScaleOfRow(weight, row + r, std::vector<float>(count).data());
    }
  }
}

// scales (rows, count): become what values of such blocks are multiplied by to become codes.
void MakeFactors(const int8::RowScale* rows_of, std::int64_t rows, std::int64_t count,
                 float* scales) {
  for (std::int64_t r = 0; r < rows; ++r, scales += count) {
    const float inverse = rows_of[r].codes.inverse;
    ForEachVector(count, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto factor = hn::Mul(hn::LoadU(d, scales + i), hn::Set(d, inverse));
      hn::StoreU(inverse == 0 ? hn::Zero(d) : factor, d, scales + i);
    });
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(ScaleRows);
HWY_EXPORT(MakeFactors);

namespace {

// Kernels for a weight in blocks, or null.
const BlockKernels* KernelsOf(const WeightView& weight) {
  return SelectKernels(DType::kF32).of_blocks(weight.blocks.format);
}

// Rows of blocks that follow are pages away.
void FetchBlocks(const WeightView& weight, std::int64_t row, std::int64_t col, std::int64_t cols) {
  if (weight.form() != WeightForm::kBlocks || row >= weight.rows()) return;
  const auto bytes = static_cast<std::int64_t>(weight.blocks.row_bytes());
  const std::byte* data = weight.blocks.Row(row) + bytes * col / weight.cols();
  for (std::int64_t i = 0; i < bytes * cols / weight.cols() + kCacheLine; i += kCacheLine) {
    hwy::Prefetch(data + i);
  }
}

constexpr std::int64_t kBlockRowsAhead = 4;  // of blocks that are fetched

// Codes of any weight, row by row.
void CodePlain(const WeightView& weight, std::int64_t row, const int8::CodeScale& scale,
               std::int64_t col, std::int64_t cols, std::uint8_t offset, std::uint8_t* out) {
  if (weight.form() == WeightForm::kBlocks && scale.inverse != 0) {
    if (const BlockKernels* kernels = KernelsOf(weight)) {
      return kernels->code_row(weight.blocks, row, {col, cols, scale.inverse, offset}, out);
    }
    float values[kCodedDepth];
    ReadRow(weight, row, col, cols, values);
    return CodeFloats({values, static_cast<std::size_t>(cols)}, scale.inverse, offset, out);
  }
  std::int8_t codes[kCodedDepth];
  int8::CodeRow(weight, row, scale, col, cols, codes);
  for (std::int64_t i = 0; i < cols; ++i) out[i] = static_cast<std::uint8_t>(codes[i] + offset);
}

// As int8::LargestOfRow.
float LargestOfRow(const WeightView& weight, std::int64_t row) {
  const BlockKernels* kernels = KernelsOf(weight);
  return kernels == nullptr ? int8::LargestOfRow(weight, row)
                            : kernels->largest(weight.blocks, row);
}

// What values of a block with scale `block` are multiplied by to become codes of a row.
float FactorOf(const int8::CodeScale& row, float block) {
  return row.inverse == 0 ? 0 : block * row.inverse;
}

}  // namespace

int8::RowScale ScaleOfRow(const WeightView& weight, std::int64_t row, float* block_scales) {
  if (weight.form() == WeightForm::kFourBit) {
    const std::int64_t count = int8::LoadRowScales(weight.quantized, row, block_scales);
    int8::RowScale scale;
    HWY_DYNAMIC_DISPATCH(ScaleRows)(weight, row, 1, block_scales, count, &scale);
    return scale;
  }
  const auto* largest = reinterpret_cast<const float*>(weight.prepacked);
  return {int8::ScaleOfLargest(largest != nullptr ? largest[row] : LargestOfRow(weight, row))};
}

std::size_t RowScaleBytes(const WeightView& weight) {
  return weight.form() == WeightForm::kBlocks ? weight.rows() * sizeof(float) : 0;
}

void PackRowScales(Context& context, const WeightView& weight, std::byte* out) {
  auto* largest = reinterpret_cast<float*>(out);
  context.ParallelFor(weight.rows(),
                      [&](std::int64_t row, int) { largest[row] = LargestOfRow(weight, row); });
}

CodedRows::CodedRows(const WeightView& weight, std::int64_t row, std::int64_t rows, float* room)
    : weight_(weight), row_(row), rows_(rows), chunk_factors_(room) {
  std::vector<float> blocks(int8::MostRowBlocks(weight));
  const std::int64_t chunks = weight.cols() / kChunk;
  const std::int64_t per_block = IsChunked(weight) ? weight.quantized.block_size / kChunk : 0;
  if (per_block == 1) {
    ScaleChunks(room);
    return;
  }
  for (std::int64_t r = 0; r < rows; ++r, room += chunks) {
    row_scales_[r] = ScaleOfRow(weight, row + r, blocks.data());
    const int8::CodeScale& scale = row_scales_[r].codes;
    factors_[r] = scale.scale;
    if (per_block == 0) continue;
    const std::int64_t first = (row + r) * chunks % per_block;
    for (std::int64_t c = 0; c < chunks; ++c) {
      room[c] = FactorOf(scale, blocks[(first + c) / per_block]);
    }
  }
}

// The usual weight: each chunk has a scale, all of which are read together.
void CodedRows::ScaleChunks(float* factors) {
  const std::int64_t chunks = weight_.cols() / kChunk;
  LoadScales(weight_.quantized, row_ * chunks, rows_ * chunks, factors);
  HWY_DYNAMIC_DISPATCH(ScaleRows)(weight_, row_, rows_, factors, chunks, row_scales_);
  HWY_DYNAMIC_DISPATCH(MakeFactors)(row_scales_, rows_, chunks, factors);
  for (std::int64_t r = 0; r < rows_; ++r) factors_[r] = row_scales_[r].codes.scale;
}

void CodedRows::Pack(std::int64_t first, std::int64_t depth, const Int8Kernels& kernels,
                     std::uint8_t* out) const {
  if (!IsChunked(weight_)) {
    for (std::int64_t r = 0; r < rows_; ++r, out += kInt8Stride) {
      FetchBlocks(weight_, row_ + r + kBlockRowsAhead, first, depth);
      PackRow(r, first, depth, kernels.offset, out);
    }
    return;
  }
  CodeChunks(Chunks(0, rows_, first, depth, kernels.offset), out);
}

CacheLines CodedRows::LinesOf(std::int64_t first) const {
  if (!IsChunked(weight_) || first >= k()) return {};
  const QuantizedView& q = weight_.quantized;
  return {q.packed + (row_ * q.cols + first) / 2, q.cols / 2, rows_,
          std::min(kCodedDepth, k() - first) / 2};
}

void CodedRows::PackRow(std::int64_t row, std::int64_t first, std::int64_t depth,
                        std::uint8_t offset, std::uint8_t* out) const {
  std::uint8_t codes[kCodedDepth] = {};
  for (std::int64_t end = first + depth; first < end; first += kCodedDepth, out += kCodedDepth) {
    const std::int64_t count = std::min(kCodedDepth, end - first);
    CodePlain(weight_, row_ + row, row_scales_[row].codes, first, count, offset, codes);
    for (std::int64_t i = 0; i < count; i += int8::kGroup) {
      PairCodes(codes + i, std::min(int8::kGroup, count - i), out + i);
    }
  }
}

void CodedRows::Multiply(const Int8Kernels& kernels, const CodedPanels& panels, std::uint8_t* room,
                         float* sums, std::int64_t stride) const {
  const CodedPanel lanes = panels[0];
  const bool chunked = IsChunked(weight_);
  const std::int64_t most = chunked ? kDotRows : 1;
  for (std::int64_t r = 0; r < rows_; r += most) {
    const std::int64_t rows = std::min(most, rows_ - r);
    for (std::int64_t k = 0; k < weight_.cols(); k += kDotDepth) {
      const std::int64_t depth = std::min(kDotDepth, weight_.cols() - k);
      PackedChunks chunks = {};
      if (chunked) {
        chunks = Chunks(r, rows, k, depth, kernels.offset);
      } else {
        PackRow(r, k, depth, kernels.offset, room);
      }
      kernels.dots({.rows = rows,
                    .k = RoundUp(depth, kInt8Depth),
                    .a = room,
                    .chunks = chunked ? &chunks : nullptr,
                    .lanes = panels.count(),
                    .panels = lanes.codes + k,
                    .k_stride = RoundUp(weight_.cols(), kInt8Depth),
                    .scales = lanes.scales + k / int8::kGroup,
                    .starts = lanes.starts + k / int8::kGroup,
                    .group_stride = Pieces(weight_.cols(), int8::kGroup),
                    .c = sums + r * stride,
                    .c_stride = stride,
                    .add = k > 0});
    }
  }
  for (std::int64_t r = 0; r < rows_; ++r) {
    for (std::int64_t m = 0; m < panels.count(); ++m) sums[r * stride + m] *= factors_[r];
  }
}

PackedChunks CodedRows::Chunks(std::int64_t row, std::int64_t rows, std::int64_t first,
                               std::int64_t depth, std::uint8_t offset) const {
  const QuantizedView& q = weight_.quantized;
  return {.packed = q.packed + ((row_ + row) * q.cols + first) / 2,
          .row_bytes = q.cols / 2,
          .rows = rows,
          .chunks = depth / kChunk,
          .code = q.code,
          .factors = chunk_factors_ + row * (q.cols / kChunk) + first / kChunk,
          .factor_stride = q.cols / kChunk,
          .offset = offset,
          .clamps = std::any_of(row_scales_ + row, row_scales_ + row + rows,
                                [](const int8::RowScale& scale) { return scale.clamps; })};
}

void CodedRows::Values(std::int64_t k, float* out) const {
  for (std::int64_t r = 0; r < rows_; ++r) ReadRow(weight_, row_ + r, k, 1, out + r);
}

void CodedRows::ForEachExcess(const Add& add) const {
  float excess[kCodedDepth];
  for (std::int64_t r = 0; r < rows_; ++r) {
    if (!row_scales_[r].clamps) continue;
    for (std::int64_t first = 0; first < k(); first += kCodedDepth) {
      const std::int64_t count = std::min(kCodedDepth, k() - first);
      int8::ExcessOfRow(weight_, row_ + r, row_scales_[r].codes, first, count, excess);
      for (std::int64_t i = 0; i < count; ++i) {
        if (excess[i] != 0) add(first + i, r, excess[i]);
      }
    }
  }
}

bool CodedColumns::HasQuads(const Int8Kernels& kernels) const {
  return kernels.quads && IsChunked(weight_);
}

void CodedColumns::Pack(std::int64_t first, std::int64_t depth, const Int8Kernels& kernels,
                        std::uint8_t* out) const {
  const QuantizedView& q = weight_.quantized;
  const int8::RowScale* scales = row_scales_ + first;
  if (!IsChunked(weight_)) {
    std::uint8_t rows[kTransposedRows * kTransposedCols] = {};
    for (std::int64_t r = 0; r < depth; r += kTransposedRows) {
      const std::int64_t count = std::min(kTransposedRows, depth - r);
      for (std::int64_t i = 0; i < count; ++i) {
        FetchBlocks(weight_, first + r + i + kTransposedRows, col_, cols_);
        CodePlain(weight_, first + r + i, scales[r + i].codes, col_, cols_, kernels.offset,
                  rows + i * kTransposedCols);
      }
      TransposeCodes(rows, cols_, out + r);
    }
    return;
  }
  float factors[kCodedDepth * kMost / kChunk];
  const std::int64_t begin = first * q.cols + col_;
  const std::int64_t chunks = cols_ / kChunk;
  if (q.block_size == kChunk) {
    LoadScaleColumns(q, begin / kChunk, q.cols / kChunk, depth, chunks, factors);
  }
  float* factor = factors;
  for (std::int64_t r = 0; r < depth; ++r) {
    for (std::int64_t c = 0; c < chunks; ++c, ++factor) {
      if (q.block_size != kChunk) {
        LoadScales(q, BlockOfIndex(q, begin + r * q.cols + c * kChunk), 1, factor);
      }
      *factor = FactorOf(scales[r].codes, *factor);
    }
  }
  const PackedChunks in = {.packed = q.packed + begin / 2,
                           .row_bytes = q.cols / 2,
                           .rows = depth,
                           .chunks = chunks,
                           .code = q.code,
                           .factors = factors,
                           .factor_stride = chunks,
                           .offset = kernels.offset};
  HasQuads(kernels) ? CodeChunkQuads(in, out) : CodeChunkColumns(in, out);
}

CacheLines CodedColumns::LinesOf(std::int64_t first) const {
  if (!IsChunked(weight_) || first >= k()) return {};
  const QuantizedView& q = weight_.quantized;
  return {q.packed + (first * q.cols + col_) / 2, q.cols / 2, std::min(kCodedDepth, k() - first),
          cols_ / 2};
}

void CodedColumns::ForEachExcess(const Add& add) const {
  float excess[kMost];
  for (std::int64_t k = 0; k < weight_.rows(); ++k) {
    if (!row_scales_[k].clamps) continue;
    int8::ExcessOfRow(weight_, k, row_scales_[k].codes, col_, cols_, excess);
    for (std::int64_t i = 0; i < cols_; ++i) {
      if (excess[i] != 0) add(k, i, excess[i]);
    }
  }
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE
