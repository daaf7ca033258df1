#include "backend/cpu/int8/coded_copy.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "backend/cpu/gemm/weight_rows.h"
#include "backend/cpu/int8/coded_operand.h"
#include "backend/cpu/views.h"

namespace qlora::cpu {
namespace {

constexpr std::int64_t kAlignment = 64;  // of values in memory: vectors are read

std::int64_t ScaleBytes(const QuantizedView& q) {
  return RoundUp(q.rows * static_cast<std::int64_t>(sizeof(int8::RowScale)), kAlignment);
}
std::int64_t FactorBytes(const QuantizedView& q) {
  return RoundUp(q.cols / kChunk * static_cast<std::int64_t>(sizeof(float)), kAlignment);
}
std::int64_t RowBytes(const QuantizedView& q) {
  return FactorBytes(q) + RoundUp(q.cols / 2, kAlignment);
}

}  // namespace

PackedChunks CodedCopy::Rows(std::int64_t row, std::int64_t rows) const {
  const std::byte* at = data_ + ScaleBytes(q_) + row * RowBytes(q_);
  return {.packed = reinterpret_cast<const std::uint8_t*>(at + FactorBytes(q_)),
          .row_bytes = RowBytes(q_),
          .rows = rows,
          .chunks = q_.cols / kChunk,
          .code = q_.code,
          .factors = reinterpret_cast<const float*>(at),
          .factor_stride = RowBytes(q_) / static_cast<std::int64_t>(sizeof(float)),
          .offset = 0};
}

std::size_t CodedCopyBytes(const QuantizedView& q) {
  if (!IsChunked(q) || q.block_size != kChunk) return 0;
  return ScaleBytes(q) + q.rows * RowBytes(q);
}

void MakeCodedCopy(Context& context, const QuantizedView& q, std::byte* out) {
  auto* scales = reinterpret_cast<int8::RowScale*>(out);
  const auto task = [&](std::int64_t index, int) {
    const std::int64_t row = index * CodedRows::kMost;
    const std::int64_t rows = std::min(CodedRows::kMost, q.rows - row);
    std::vector<float> room(rows * (q.cols / kChunk));
    const WeightView weight(q);
    const CodedRows coded(weight, row, rows, room.data());
    std::copy_n(coded.row_scales(), rows, scales + row);
    for (std::int64_t r = 0; r < rows; ++r) {
      std::byte* to = out + ScaleBytes(q) + (row + r) * RowBytes(q);
      std::memcpy(to, room.data() + r * (q.cols / kChunk), q.cols / kChunk * sizeof(float));
      std::memcpy(to + FactorBytes(q), q.packed + (row + r) * q.cols / 2, q.cols / 2);
    }
  };
  context.ParallelFor(Pieces(q.rows, CodedRows::kMost), std::ref(task));
}

}  // namespace qlora::cpu
