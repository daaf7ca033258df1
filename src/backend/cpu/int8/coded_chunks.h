// Values of a weight as codes of 8 bits. 4-bit values are coded 64 at a time: a block has 16 codes,
// which are looked up.
#ifndef QLORA_BACKEND_CPU_INT8_CODED_CHUNKS_H_
#define QLORA_BACKEND_CPU_INT8_CODED_CHUNKS_H_

#include <cstdint>
#include <span>

#include "backend/cpu/gemm/format.h"
#include "qlora/nf4.h"

namespace qlora::cpu {

// Whole chunks of some rows.
struct PackedChunks {
  const std::uint8_t* packed;
  std::int64_t row_bytes;  // from one row to the next
  std::int64_t rows;
  std::int64_t chunks;
  const float* code;     // 16 values
  const float* factors;  // (rows, chunks): a code is value * factor, rounded
  std::int64_t factor_stride;
  std::uint8_t offset;  // is added to codes
  bool clamps = true;   // false: no value has a larger code than the largest
};

// Paired order puts the even columns of a group before the odd ones: a byte of 4-bit values has one
// of each. A group of n columns, rounded up to kInt8Depth, is in whole halves:
//   0 2 4 ... n - 2 | 1 3 5 ... n - 1
// Sums over a group do not depend on it, if both operands are in this order.
//
// out (count, rounded up to kInt8Depth): a group of `count` codes in paired order. `in` has as
// many.
void PairCodes(const std::uint8_t* in, std::int64_t count, std::uint8_t* out);

// out (rows, chunks * kChunk), rows kInt8Stride apart, in paired order.
void CodeChunks(const PackedChunks& in, std::uint8_t* out);

// Rows that are transposed at a time.
inline constexpr std::int64_t kTransposedRows = 16;
inline constexpr std::int64_t kTransposedCols = 2 * kChunk;
// out(i, r) for each value i of one or two chunks of row r, rows of `out` kInt8Stride apart. Rows
// are rounded up to kTransposedRows; those beyond the last one become any bytes.
void CodeChunkColumns(const PackedChunks& in, std::uint8_t* out);
// The same of codes (kTransposedRows, kTransposedCols), of which the first `cols` columns are
// needed.
void TransposeCodes(const std::uint8_t* in, std::int64_t cols, std::uint8_t* out);
// out(r / 4, i, r % 4) for each value i of one or two chunks of row r, quads of rows kInt8Stride
// apart. Of the last quad, rows beyond the last one become any bytes.
void CodeChunkQuads(const PackedChunks& in, std::uint8_t* out);

// out = values * inverse, clamped and rounded, + offset.
void CodeFloats(std::span<const float> values, float inverse, std::uint8_t offset,
                std::uint8_t* out);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_INT8_CODED_CHUNKS_H_
