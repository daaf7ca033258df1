// Gradients by complex step: for an analytic f, imag(f(x + i h)) / h is f'(x) to rounding, with no
// cancellation, for h as small as 1e-50 (Squire and Trapp, "Using complex variables to estimate
// derivatives of real functions").
#ifndef QLORA_TESTS_BACKEND_TEST_GRADIENT_H_
#define QLORA_TESTS_BACKEND_TEST_GRADIENT_H_

#include <algorithm>
#include <functional>
#include <string>

#include "backend/test_util.h"

namespace qlora::testing_util {

inline constexpr double kStep = 1e-50;
inline constexpr double kTolerance = 1e-12;  // relative to the largest element of a gradient

// d loss / d input (F64, the shape of input), where loss() reads input (C128).
inline Matrix ComplexStep(Matrix& input, const std::function<Complex()>& loss) {
  Matrix gradient(DType::kF64, input.rows(), input.cols());
  for (std::int64_t r = 0; r < input.rows(); ++r) {
    for (std::int64_t c = 0; c < input.cols(); ++c) {
      const Complex value = input.at(r, c);
      input.Set(r, c, value + Complex(0, kStep));
      gradient.Set(r, c, loss().imag() / kStep);
      input.Set(r, c, value);
    }
  }
  return gradient;
}

// Sum of cotangent * y, not conjugated: the loss whose gradient at y is the cotangent.
inline Complex Contract(const Matrix& cotangent, const Matrix& y) {
  Complex sum = 0;
  for (std::int64_t r = 0; r < y.rows(); ++r) {
    for (std::int64_t c = 0; c < y.cols(); ++c) sum += cotangent.at(r, c) * y.at(r, c);
  }
  return sum;
}

inline double Largest(const Matrix& m) {
  double largest = 0;
  for (std::int64_t r = 0; r < m.rows(); ++r) {
    for (std::int64_t c = 0; c < m.cols(); ++c) largest = std::max(largest, std::abs(m(r, c)));
  }
  return largest;
}

// after - before, or after where nothing was added to.
inline Matrix Difference(const Matrix& after, const Matrix& before) {
  Matrix out = after;
  for (std::int64_t r = 0; r < out.rows(); ++r) {
    for (std::int64_t c = 0; c < out.cols(); ++c) out.Set(r, c, after(r, c) - before(r, c));
  }
  return out;
}

inline void ExpectGradient(const Matrix& found, const Matrix& expected, const std::string& what) {
  EXPECT_TRUE(expected.empty() || Largest(expected) > 0) << what << " does not depend on its input";
  const double bound = kTolerance * std::max(1.0, Largest(expected));
  ExpectWithin(found, expected, Filled(DType::kF64, found.rows(), found.cols(), bound), what);
}

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_BACKEND_TEST_GRADIENT_H_
