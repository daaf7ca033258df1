// Decoding of one block: the definition of the vector kernels, in scalar code.
#ifndef QLORA_QUANT_DECODE_H_
#define QLORA_QUANT_DECODE_H_

#include <algorithm>
#include <array>
#include <cstdint>

#include "qlora/nf4.h"

namespace qlora {

// The 16 values of a block: code * scale.
inline std::array<float, 16> BlockValues(const float* code, float scale) {
  std::array<float, 16> values;
  for (std::size_t k = 0; k < values.size(); ++k) values[k] = code[k] * scale;
  return values;
}

// out (n) = values of nibbles [first, first + n) of packed, rounded to T.
template <typename T>
void DecodeSpan(const std::uint8_t* packed, std::int64_t first, std::int64_t n,
                const std::array<float, 16>& values, T* out);

// Errors (InvalidInput): `out` is not F32, BF16 or F16, or does not have the shape of rows
// [first_row, first_row + out.rows) of a (rows, cols) matrix.
void CheckDecodedRows(std::int64_t rows, std::int64_t cols, std::int64_t first_row,
                      const MatrixView& out);
// The same for all rows.
void CheckDecodedMatrix(std::int64_t rows, std::int64_t cols, const MatrixView& out);

// Rows that a task decodes: enough to hide the hand-out of tasks.
constexpr std::int64_t RowsPerDecodeTask(std::int64_t cols) {
  constexpr std::int64_t kValues = 1 << 18;
  return std::max<std::int64_t>(1, kValues / std::max<std::int64_t>(1, cols));
}

inline void Store(float value, float* out) { *out = value; }
inline void Store(float value, BFloat16* out) { *out = ToBFloat16(value); }
inline void Store(float value, Float16* out) { *out = ToFloat16(value); }

}  // namespace qlora

#endif  // QLORA_QUANT_DECODE_H_
