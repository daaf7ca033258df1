// Where blocks, rows and stored pieces of a 4-bit matrix lie.
#ifndef QLORA_QUANT_LAYOUT_H_
#define QLORA_QUANT_LAYOUT_H_

#include <algorithm>
#include <cstdint>

#include "qlora/nf4.h"

namespace qlora {

// The values of one block: flat row-major indices [begin, begin + count).
struct BlockRange {
  std::int64_t begin;
  std::int64_t count;
};

inline BlockRange RangeOfBlock(const QuantizedView& q, std::int64_t block) {
  if (!q.row_blocks) {
    const std::int64_t begin = block * q.block_size;
    return {begin, std::min(q.block_size, q.size() - begin)};
  }
  const std::int64_t row = block / q.blocks_per_row();
  const std::int64_t col = block % q.blocks_per_row() * q.block_size;
  return {row * q.cols + col, std::min(q.block_size, q.cols - col)};
}

inline std::int64_t BlockOfIndex(const QuantizedView& q, std::int64_t index) {
  if (!q.row_blocks) return index / q.block_size;
  return index / q.cols * q.blocks_per_row() + index % q.cols / q.block_size;
}

// The shape and the form of what QuantizeInto returns for a (rows, cols) matrix, without pointers
// into storage or what is known from values only.
QuantizedView PlanQuantized(std::int64_t rows, std::int64_t cols, const QuantizeOptions& options);

// Calls fn(first element, count) for the contiguous pieces of the flat range [begin, begin + count)
// of a matrix whose rows may be `stride` apart.
template <typename T, typename Fn>
void ForEachPiece(const ConstMatrixView& m, std::int64_t begin, std::int64_t count, Fn fn) {
  if (m.stride == m.cols) return fn(static_cast<const T*>(m.data) + begin, count);
  while (count > 0) {
    const std::int64_t col = begin % m.cols;
    const std::int64_t piece = std::min(count, m.cols - col);
    fn(m.Row<T>(begin / m.cols) + col, piece);
    begin += piece;
    count -= piece;
  }
}

constexpr std::size_t AlignUp(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

inline bool IsDouble(ScaleType type) {
  return type == ScaleType::kDoubleBnb || type == ScaleType::kDoubleTorchao;
}

// Bytes of one stored scale.
inline std::size_t ScaleBytes(ScaleType type) {
  switch (type) {
    case ScaleType::kF32:
      return 4;
    case ScaleType::kF16:
    case ScaleType::kBF16:
      return 2;
    case ScaleType::kDoubleBnb:
    case ScaleType::kDoubleTorchao:
      return 1;
  }
  return 0;
}

inline float RoundTo(DType dtype, float value) {
  if (dtype == DType::kBF16) return ToFloat(ToBFloat16(value));
  if (dtype == DType::kF16) return ToFloat(ToFloat16(value));
  return value;
}

inline float ToFloat(float value) { return value; }

}  // namespace qlora

#endif  // QLORA_QUANT_LAYOUT_H_
