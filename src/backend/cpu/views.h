// Rounding and parts of matrices.
#ifndef QLORA_BACKEND_CPU_VIEWS_H_
#define QLORA_BACKEND_CPU_VIEWS_H_

#include <cstdint>

#include "base/matrix.h"
#include "qlora/tensor.h"

namespace qlora::cpu {

// The smallest multiple of `multiple` that is at least n.
inline std::int64_t RoundUp(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// The number of pieces of length `piece` that cover n.
inline std::int64_t Pieces(std::int64_t n, std::int64_t piece) { return (n + piece - 1) / piece; }

// Rows [row, row + rows) and columns [col, col + cols) of a matrix.
template <typename View>
View Block(const View& m, std::int64_t row, std::int64_t rows, std::int64_t col,
           std::int64_t cols) {
  return Columns(Rows(m, row, rows), col, cols);
}

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_VIEWS_H_
