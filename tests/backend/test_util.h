// What backend tests share: matrices that own poisoned, guarded storage, random values, and
// comparison against a computed bound.
#ifndef QLORA_TESTS_BACKEND_TEST_UTIL_H_
#define QLORA_TESTS_BACKEND_TEST_UTIL_H_

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <cstring>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/random.h"
#include "qlora/tensor.h"

namespace qlora::testing_util {

using Complex = std::complex<double>;

// A (rows, cols) matrix of dtype F32, F16, BF16, F64 or C128. Rows are `padding` elements further
// apart than they need be, and padding, guard bands and new elements hold NaN, so that a read
// outside of the matrix shows in the result and a write outside of it in GuardsIntact().
class Matrix {
 public:
  Matrix() = default;
  Matrix(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t padding = 3)
      : dtype_(dtype),
        rows_(rows),
        cols_(cols),
        stride_(cols + padding),
        element_bytes_(BytesOf(dtype, 1)),
        bytes_(BytesOf(dtype, rows * stride_ + 2 * kGuard), kPoison) {}

  DType dtype() const { return dtype_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::int64_t padding() const { return stride_ - cols_; }
  bool empty() const { return rows_ == 0 || cols_ == 0; }

  MatrixView view() {
    if (rows_ == 0 && cols_ == 0) return {};
    return {bytes_.data() + Offset(0, 0), dtype_, rows_, cols_, stride_};
  }
  ConstMatrixView view() const { return const_cast<Matrix*>(this)->view(); }

  // Element (r, c) as a complex number, and its real part.
  Complex at(std::int64_t r, std::int64_t c) const {
    switch (dtype_) {
      case DType::kF32:
        return Load<float>(r, c);
      case DType::kF16:
        return ToFloat(Load<Float16>(r, c));
      case DType::kBF16:
        return ToFloat(Load<BFloat16>(r, c));
      case DType::kF64:
        return Load<double>(r, c);
      default:
        return Load<Complex>(r, c);
    }
  }
  double operator()(std::int64_t r, std::int64_t c) const { return at(r, c).real(); }

  // Rounds to the element type; only C128 keeps an imaginary part.
  void Set(std::int64_t r, std::int64_t c, Complex value) {
    const double x = value.real();
    switch (dtype_) {
      case DType::kF32:
        return Save(r, c, static_cast<float>(x));
      case DType::kF16:
        return Save(r, c, ToFloat16(static_cast<float>(x)));
      case DType::kBF16:
        return Save(r, c, ToBFloat16(static_cast<float>(x)));
      case DType::kF64:
        return Save(r, c, x);
      default:
        return Save(r, c, value);
    }
  }

  bool GuardsIntact() const {
    Matrix only_guards = *this;
    for (std::int64_t r = 0; r < rows_; ++r) {
      std::memset(only_guards.bytes_.data() + Offset(r, 0), kPoison, BytesOf(dtype_, cols_));
    }
    for (const unsigned char byte : only_guards.bytes_) {
      if (byte != kPoison) return false;
    }
    return true;
  }

 private:
  static constexpr unsigned char kPoison = 0xff;  // NaN in every type
  static constexpr std::int64_t kGuard = 17;

  std::size_t Offset(std::int64_t r, std::int64_t c) const {
    return element_bytes_ * static_cast<std::size_t>(kGuard + r * stride_ + c);
  }
  template <typename T>
  T Load(std::int64_t r, std::int64_t c) const {
    T value;
    std::memcpy(static_cast<void*>(&value), bytes_.data() + Offset(r, c), sizeof(T));
    return value;
  }
  template <typename T>
  void Save(std::int64_t r, std::int64_t c, T value) {
    std::memcpy(bytes_.data() + Offset(r, c), static_cast<const void*>(&value), sizeof(T));
  }

  DType dtype_ = DType::kF32;
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
  std::int64_t stride_ = 0;
  std::size_t element_bytes_ = 0;
  std::vector<unsigned char> bytes_;
};

// The same shape, each element fn(element), in another type.
template <typename Fn>
Matrix Map(const Matrix& m, DType dtype, const Fn& fn) {
  Matrix out(dtype, m.rows(), m.cols(), m.padding());
  for (std::int64_t r = 0; r < m.rows(); ++r) {
    for (std::int64_t c = 0; c < m.cols(); ++c) out.Set(r, c, fn(m.at(r, c)));
  }
  return out;
}
inline Matrix Convert(const Matrix& m, DType dtype) {
  return Map(m, dtype, [](Complex x) { return x; });
}
inline Matrix Abs(const Matrix& m) {
  return Map(m, DType::kF64, [](Complex x) { return std::abs(x); });
}
inline Matrix Scaled(double factor, const Matrix& m) {
  return Map(m, DType::kF64, [=](Complex x) { return factor * x; });
}
inline Matrix Filled(DType dtype, std::int64_t rows, std::int64_t cols, double value) {
  return Map(Matrix(dtype, rows, cols), dtype, [=](Complex) { return value; });
}
inline Matrix Poisoned(const Matrix& like) {
  return Matrix(like.dtype(), like.rows(), like.cols(), like.padding());
}

// Arithmetic in float64, for bounds. An absent matrix is zero in a sum.
inline Matrix Transposed(const Matrix& m) {
  Matrix out(DType::kF64, m.cols(), m.rows());
  for (std::int64_t r = 0; r < m.rows(); ++r) {
    for (std::int64_t c = 0; c < m.cols(); ++c) out.Set(c, r, m(r, c));
  }
  return out;
}
inline Matrix Product(const Matrix& a, const Matrix& b) {
  Matrix out = Filled(DType::kF64, a.rows(), b.cols(), 0);
  for (std::int64_t r = 0; r < a.rows(); ++r) {
    for (std::int64_t c = 0; c < b.cols(); ++c) {
      double sum = 0;
      for (std::int64_t i = 0; i < a.cols(); ++i) sum += a(r, i) * b(i, c);
      out.Set(r, c, sum);
    }
  }
  return out;
}
inline Matrix Sum(const Matrix& a, const Matrix& b) {
  if (b.empty()) return a;
  Matrix out = Convert(a, DType::kF64);
  for (std::int64_t r = 0; r < a.rows(); ++r) {
    for (std::int64_t c = 0; c < a.cols(); ++c) out.Set(r, c, a(r, c) + b(r, c));
  }
  return out;
}

// Fresh random numbers, a different stream for each seed.
class Random {
 public:
  explicit Random(std::uint64_t seed) : key_(MakeKey(seed, RandomPlace::kTest)) {}

  double Normal() { return RandomNormal(key_, next_++); }
  std::int64_t Below(std::int64_t n) {
    return static_cast<std::int64_t>(RandomBelow(key_, next_++, static_cast<std::uint64_t>(n)));
  }
  // Normal values of the given deviation that `precise` can hold, stored as dtype.
  Matrix Normal(DType dtype, std::int64_t rows, std::int64_t cols, double deviation,
                DType precise = DType::kF64) {
    Matrix rounded(precise, 1, 1);
    return Map(Matrix(dtype, rows, cols, Below(6)), dtype, [&](Complex) {
      rounded.Set(0, 0, deviation * Normal());
      return rounded.at(0, 0);
    });
  }

 private:
  RandomKey key_;
  std::uint64_t next_ = 0;
};

// Largest relative error of one rounding to nearest.
inline double UnitRoundoff(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0x1p-24;
    case DType::kF16:
      return 0x1p-11;
    case DType::kBF16:
      return 0x1p-8;
    default:
      return 0x1p-53;
  }
}

// Relative error of k roundings one after the other (Higham, "Accuracy and stability of numerical
// algorithms", section 3.1): also of a sum of k products in any order, relative to the sum of their
// absolute values.
inline double Gamma(std::int64_t k, double unit) {
  const double ku = static_cast<double>(k) * unit;
  return ku / (1 - ku);
}

// |actual - expected| <= bound, plus one rounding on store to the type of actual, for each element;
// reports the worst one.
inline void ExpectWithin(const Matrix& actual, const Matrix& expected, const Matrix& bound,
                         const std::string& what) {
  ASSERT_EQ(actual.rows(), expected.rows()) << what;
  ASSERT_EQ(actual.cols(), expected.cols()) << what;
  EXPECT_TRUE(actual.empty() || actual.GuardsIntact()) << what << ": wrote outside of its output";
  double worst = 0;
  std::string report;
  for (std::int64_t r = 0; r < actual.rows(); ++r) {
    for (std::int64_t c = 0; c < actual.cols(); ++c) {
      const double error = std::abs(actual.at(r, c) - expected.at(r, c));
      // Subnormal results: an absolute error of the smallest normal float is never an error.
      const double allowed =
          bound(r, c) + 0x1p-126 +
          UnitRoundoff(actual.dtype()) * (std::abs(expected.at(r, c)) + bound(r, c));
      const double ratio = error / allowed;
      if (ratio <= worst) continue;  // false for NaN
      worst = std::isnan(ratio) ? HUGE_VAL : ratio;
      report = fmt::format("({}, {}): expected {:g}, found {:g}, error {:g}, allowed {:g}", r, c,
                           expected(r, c), actual(r, c), error, allowed);
    }
  }
  EXPECT_LE(worst, 1) << what << " " << report;
}

// Equal values, NaN nowhere.
inline void ExpectEqual(const Matrix& actual, const Matrix& expected, const std::string& what) {
  ASSERT_EQ(actual.rows(), expected.rows()) << what;
  ASSERT_EQ(actual.cols(), expected.cols()) << what;
  EXPECT_TRUE(actual.empty() || actual.GuardsIntact()) << what << ": wrote outside of its output";
  for (std::int64_t r = 0; r < actual.rows(); ++r) {
    for (std::int64_t c = 0; c < actual.cols(); ++c) {
      ASSERT_EQ(actual.at(r, c), expected.at(r, c)) << what << " (" << r << ", " << c << ")";
    }
  }
}

// ReadSumOfSquares of a backend that computes in host memory.
inline double SumOfSquaresOf(Backend& backend, const ConstMatrixView& x) {
  double sum = 0;
  return ReadSumOfSquares(backend, x, MakeView(&sum, 1, 1));
}

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_BACKEND_TEST_UTIL_H_
