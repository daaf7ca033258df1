// Shapes, bounds and indices of the ops that work row by row.
#ifndef QLORA_TESTS_BACKEND_TEST_ROWS_H_
#define QLORA_TESTS_BACKEND_TEST_ROWS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "backend/test_util.h"

namespace qlora::testing_util {

// Roundings of one exp, log or tanh.
inline constexpr int kMathRoundings = 8;

struct RowsShape {
  std::int64_t rows, cols;
};
// The last two have more rows, and longer ones, than a block of threads takes at once.
inline std::vector<RowsShape> RowsShapes() {
  return {{1, 1}, {1, 64}, {3, 7}, {5, 33}, {17, 128}, {2, 1000}, {64, 48}, {300, 8}, {2, 5000}};
}

// A matrix of the given shape whose elements are fn(r, c).
inline Matrix Bound(const Matrix& like,
                    const std::function<double(std::int64_t, std::int64_t)>& fn) {
  Matrix bound(DType::kF64, like.rows(), like.cols());
  for (std::int64_t r = 0; r < like.rows(); ++r) {
    for (std::int64_t c = 0; c < like.cols(); ++c) bound.Set(r, c, fn(r, c));
  }
  return bound;
}

inline std::vector<std::int32_t> RandomIndices(Random& random, std::int64_t size,
                                               std::int64_t count) {
  std::vector<std::int32_t> indices;
  for (std::int64_t i = 0; i < size; ++i) {
    indices.push_back(static_cast<std::int32_t>(random.Below(count)));
  }
  return indices;
}

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_BACKEND_TEST_ROWS_H_
