// The places of blocks and stored pieces of a 4-bit matrix.
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
  const std::int64_t begin = block * q.block_size;
  return {begin, std::min(q.block_size, q.size() - begin)};
}

inline std::int64_t BlockOfIndex(const QuantizedView& q, std::int64_t index) {
  return index / q.block_size;
}

// The shape and the form of the view that QuantizeInto returns for a (rows, cols) matrix, without
// pointers into storage and without fields that depend on the values.
QuantizedView PlanQuantized(std::int64_t rows, std::int64_t cols, const QuantizeOptions& options);

// Pieces of storage begin at multiples of 64 bytes.
constexpr std::size_t AlignUp(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// Bytes of one stored scale.
constexpr std::size_t ScaleBytes(ScaleType type) { return type == ScaleType::kF32 ? 4 : 1; }

inline float ToFloat(float value) { return value; }

}  // namespace qlora

#endif  // QLORA_QUANT_LAYOUT_H_
