// Decoding of matrices of any form: by the kernels where the codes are stored as in bitsandbytes,
// otherwise block by block in scalar code.
#include "quant/compat/layout.h"
#include "quant/decode.h"

namespace qlora::compat {
namespace {

// Decodes one row to contiguous memory.
template <typename T>
void DecodeRow(const View& q, std::int64_t row, T* out) {
  const std::int64_t end = (row + 1) * q.cols;
  for (std::int64_t begin = row * q.cols; begin < end;) {
    const std::int64_t block = BlockOfIndex(q, begin);
    const BlockRange range = RangeOfBlock(q, block);
    const std::int64_t stop = std::min(end, range.begin + range.count);
    float scale;
    LoadScales(q, block, 1, &scale);
    std::array<float, 16> values = BlockValues(q.code, scale);
    if (q.shifts != nullptr) {
      // value = code * scale + shift, each step rounded: the shift is added to the 16 values of the
      // block, not to each of its elements.
      for (float& value : values) value += q.shifts[block];
    }
    DecodeSpan(q.packed, begin, stop - begin, values, out);
    out += stop - begin;
    begin = stop;
  }
}

}  // namespace

void DequantizeRows(const View& q, std::int64_t first_row, MatrixView out) {
  if (const auto bnb = AsBnb(q)) return qlora::DequantizeRows(*bnb, first_row, out);
  CheckDecodedRows(q.rows, q.cols, first_row, out);
  for (std::int64_t r = 0; r < out.rows; ++r) {
    if (out.dtype == DType::kBF16) {
      DecodeRow(q, first_row + r, out.Row<BFloat16>(r));
    } else if (out.dtype == DType::kF16) {
      DecodeRow(q, first_row + r, out.Row<Float16>(r));
    } else {
      DecodeRow(q, first_row + r, out.Row<float>(r));
    }
  }
}

void Dequantize(Context& context, const View& q, MatrixView out) {
  // Float32 scales cost one float per block for the time of the call.
  if (const auto bnb = ConvertToBnb(Matrix(q, nullptr))) {
    return qlora::Dequantize(context, bnb->view(), out);
  }
  CheckDecodedMatrix(q.rows, q.cols, out);
  const std::int64_t per_task = RowsPerDecodeTask(q.cols);
  context.ParallelFor(BlockCount(q.rows, per_task), [&](std::int64_t task, int) {
    const std::int64_t row = task * per_task;
    DequantizeRows(q, row, Rows(out, row, std::min(per_task, q.rows - row)));
  });
}

}  // namespace qlora::compat
