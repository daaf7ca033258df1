// Decoding of matrices and of rows: kernels for whole blocks, scalar code for the rest.
#include <hwy/cache_control.h>

#include <algorithm>

#include "base/check.h"
#include "base/matrix.h"
#include "quant/decode.h"
#include "quant/kernels.h"
#include "quant/layout.h"

namespace qlora {
namespace {

constexpr std::int64_t kScalesAtOnce = 256;
// From this size on, an output will not be found in the caches by whoever reads it next.
constexpr std::size_t kStreamBytes = std::size_t{16} << 20;

// Decodes the flat range [begin, begin + count) to contiguous memory.
//
//   |   block   |   block   |   block   |   block   |
//        [part   |  whole blocks         | part]
//
// The parts of blocks at the ends, and blocks that are not a multiple of kKernelStep, are decoded
// value by value. Scales are loaded for kScalesAtOnce blocks at a time.
template <typename T>
void DecodeRange(const QuantizedView& q, std::int64_t begin, std::int64_t count, bool stream,
                 T* out) {
  const std::int64_t end = begin + count;
  const std::int64_t last_block = BlockOfIndex(q, end - 1);
  float scales[kScalesAtOnce];
  for (std::int64_t block = BlockOfIndex(q, begin); block <= last_block;) {
    const std::int64_t blocks = std::min(kScalesAtOnce, last_block + 1 - block);
    LoadScales(q, block, blocks, scales);
    for (std::int64_t i = 0; i < blocks;) {
      const std::int64_t whole = std::min(blocks - i, (end - begin) / q.block_size);
      if (q.block_size % kKernelStep == 0 && whole > 0 && begin % q.block_size == 0) {
        DecodeBlocks({.packed = q.packed + begin / 2,
                      .blocks = whole,
                      .block_size = q.block_size,
                      .code = q.code,
                      .scales = scales + i,
                      .out = out,
                      .dtype = kDTypeOf<T>,
                      .stream = stream});
        out += whole * q.block_size;
        begin += whole * q.block_size;
        i += whole;
        continue;
      }
      const BlockRange range = RangeOfBlock(q, block + i);
      const std::int64_t stop = std::min(end, range.begin + range.count);
      DecodeSpan(q.packed, begin, stop - begin, BlockValues(q.code, scales[i]), out);
      out += stop - begin;
      begin = stop;
      ++i;
    }
    block += blocks;
  }
}

// Rows that follow each other without gaps are one range, in which blocks may cross row ends.
template <typename T>
void DecodeRows(const QuantizedView& q, std::int64_t first_row, bool stream,
                const MatrixView& out) {
  const std::int64_t begin = first_row * q.cols;
  if (out.stride == out.cols) {
    return DecodeRange(q, begin, out.rows * out.cols, stream, out.Row<T>(0));
  }
  for (std::int64_t r = 0; r < out.rows; ++r) {
    DecodeRange(q, begin + r * q.cols, q.cols, stream, out.Row<T>(r));
  }
}

void DecodeRowsAs(const QuantizedView& q, std::int64_t first_row, bool stream,
                  const MatrixView& out) {
  if (out.empty()) return;
  switch (out.dtype) {
    case DType::kBF16:
      DecodeRows<BFloat16>(q, first_row, stream, out);
      break;
    case DType::kF16:
      DecodeRows<Float16>(q, first_row, stream, out);
      break;
    default:
      DecodeRows<float>(q, first_row, stream, out);
  }
  if (stream) hwy::FlushStream();
}

}  // namespace

template <typename T>
void DecodeSpan(const std::uint8_t* packed, std::int64_t first, std::int64_t n,
                const std::array<float, 16>& values, T* out) {
  // Rounding the 16 values once is rounding each product: equal codes have equal products.
  std::array<T, 16> rounded;
  for (std::size_t k = 0; k < rounded.size(); ++k) Store(values[k], &rounded[k]);
  for (std::int64_t i = first; i < first + n; ++i) {
    const std::uint8_t byte = packed[i / 2];
    *out++ = rounded[i % 2 == 0 ? byte >> 4 : byte & 15];
  }
}
template void DecodeSpan(const std::uint8_t*, std::int64_t, std::int64_t,
                         const std::array<float, 16>&, float*);
template void DecodeSpan(const std::uint8_t*, std::int64_t, std::int64_t,
                         const std::array<float, 16>&, BFloat16*);
template void DecodeSpan(const std::uint8_t*, std::int64_t, std::int64_t,
                         const std::array<float, 16>&, Float16*);

void CheckDecodedRows(std::int64_t rows, std::int64_t cols, std::int64_t first_row,
                      const MatrixView& out) {
  if (!IsFloat(out.dtype)) {
    ThrowInvalidInput("dequantize: expected an F32, BF16 or F16 output, found {}",
                      NameOf(out.dtype));
  }
  if (first_row < 0 || first_row + out.rows > rows || out.cols != cols || out.stride < out.cols) {
    ThrowInvalidInput(
        "dequantize: rows [{}, {}) of a ({}, {}) matrix do not fit an output of shape ({}, {}) and "
        "stride {}",
        first_row, first_row + out.rows, rows, cols, out.rows, out.cols, out.stride);
  }
}

void CheckDecodedMatrix(std::int64_t rows, std::int64_t cols, const MatrixView& out) {
  CheckDecodedRows(rows, cols, 0, out);
  if (out.rows != rows) {
    ThrowInvalidInput("dequantize: expected an output of {} rows, found {}", rows, out.rows);
  }
}

void DequantizeRows(const QuantizedView& q, std::int64_t first_row, MatrixView out) {
  CheckDecodedRows(q.rows, q.cols, first_row, out);
  DecodeRowsAs(q, first_row, false, out);
}

void Dequantize(Context& context, const QuantizedView& q, MatrixView out) {
  CheckDecodedMatrix(q.rows, q.cols, out);
  // Stores past the caches save the read of each line before it is overwritten.
  const bool stream = BytesOf(out.dtype, q.size()) >= kStreamBytes;
  const std::int64_t rows_per_task = RowsPerDecodeTask(q.cols);
  context.ParallelFor(BlockCount(q.rows, rows_per_task), [&](std::int64_t task, int) {
    const std::int64_t row = task * rows_per_task;
    DecodeRowsAs(q, row, stream, Rows(out, row, std::min(rows_per_task, q.rows - row)));
  });
}

}  // namespace qlora
