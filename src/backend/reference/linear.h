// The definition of a linear with a frozen weight and a low-rank adapter, and of its backward.
// Derivation: docs/math/lora_nf4_linear.md.
#ifndef QLORA_BACKEND_REFERENCE_LINEAR_H_
#define QLORA_BACKEND_REFERENCE_LINEAR_H_

#include "backend/reference/elementwise.h"

namespace qlora::reference {

// One linear over T: weight (O, I), bias (1, O) or empty, a (R, I) and b (O, R) or empty.
template <typename T>
struct LinearOf {
  Mat<const T> weight;
  Mat<const T> bias;
  Mat<const T> a;
  Mat<const T> b;
  T scale = 0;
  float dropout = 0;
  RandomKey dropout_key;
  // x W^T (N, O) or dy W (N, I), computed before; or empty.
  Mat<const T> product = {};

  bool has_adapter() const { return !a.empty(); }
};

// The dropout factor of element (n, i) of the adapter's input: 0 with probability `dropout`,
// otherwise 1 / (1 - dropout). It depends on (key, n, i) alone, so forward and backward agree.
template <typename T>
T DropFactor(const LinearOf<T>& linear, std::int64_t n, std::int64_t i) {
  if (linear.dropout == 0) return T(1);
  const auto index = static_cast<std::uint64_t>(n * linear.weight.cols + i);
  if (RandomUniform(linear.dropout_key, index) < linear.dropout) return T(0);
  return T(1) / (T(1) - static_cast<T>(linear.dropout));
}

// u = drop(x) A^T;  y = x W^T + bias + scale u B^T
template <typename T>
void Linear(const LinearOf<T>& linear, Mat<const T> x, Mat<T> y, Mat<T> u, Store store) {
  for (std::int64_t n = 0; n < x.rows; ++n) {
    for (std::int64_t r = 0; r < linear.a.rows; ++r) {
      T sum = 0;
      for (std::int64_t i = 0; i < x.cols; ++i) {
        sum += DropFactor(linear, n, i) * x(n, i) * linear.a(r, i);
      }
      u(n, r) = sum;
    }
    for (std::int64_t o = 0; o < linear.weight.rows; ++o) {
      T sum = linear.product.empty() ? T(0) : linear.product(n, o);
      for (std::int64_t i = 0; linear.product.empty() && i < x.cols; ++i) {
        sum += x(n, i) * linear.weight(o, i);
      }
      if (!linear.bias.empty()) sum += linear.bias(0, o);
      T low_rank = 0;
      for (std::int64_t r = 0; r < linear.a.rows; ++r) low_rank += u(n, r) * linear.b(o, r);
      if (linear.has_adapter()) sum += linear.scale * low_rank;
      Put(store, sum, y(n, o));
    }
  }
}

// du = scale dy B;  dB += scale dy^T u;  dA += du^T drop(x);  dx = dy W + drop'(du A)
// du is a scratch row (1, R). dx may be empty.
template <typename T>
void LinearBackward(const LinearOf<T>& linear, Mat<const T> x, Mat<const T> dy, Mat<const T> u,
                    Mat<T> da_acc, Mat<T> db_acc, Mat<T> du, Mat<T> dx, Store store) {
  const std::int64_t out_features = linear.weight.rows;
  const std::int64_t rank = linear.a.rows;
  for (std::int64_t n = 0; n < dy.rows; ++n) {
    for (std::int64_t r = 0; r < rank; ++r) {
      T sum = 0;
      for (std::int64_t o = 0; o < out_features; ++o) {
        sum += dy(n, o) * linear.b(o, r);
        db_acc(o, r) += linear.scale * dy(n, o) * u(n, r);
      }
      du(0, r) = linear.scale * sum;
    }
    for (std::int64_t i = 0; i < linear.weight.cols; ++i) {
      const T factor = linear.has_adapter() ? DropFactor(linear, n, i) : T(0);
      T low_rank = 0;
      for (std::int64_t r = 0; r < rank; ++r) {
        da_acc(r, i) += du(0, r) * factor * x(n, i);
        low_rank += du(0, r) * linear.a(r, i);
      }
      if (dx.empty()) continue;
      T sum = linear.product.empty() ? T(0) : linear.product(n, i);
      for (std::int64_t o = 0; linear.product.empty() && o < out_features; ++o) {
        sum += dy(n, o) * linear.weight(o, i);
      }
      Put(store, sum + factor * low_rank, dx(n, i));
    }
  }
}

// norm = |row o of W + scale B A|;  inverse = 1 / norm
template <typename T>
void RowNorms(const LinearOf<T>& linear, Mat<T> norm, Mat<T> inverse) {
  for (std::int64_t o = 0; o < linear.weight.rows; ++o) {
    T sum = 0;
    for (std::int64_t i = 0; i < linear.weight.cols; ++i) {
      T value = linear.weight(o, i);
      for (std::int64_t r = 0; r < linear.a.rows; ++r) {
        value += linear.scale * linear.b(o, r) * linear.a(r, i);
      }
      sum += value * value;
    }
    if (!norm.empty()) norm(0, o) = std::sqrt(sum);
    inverse(0, o) = sum == T(0) ? T(0) : T(1) / std::sqrt(sum);
  }
}

// dW += dy^T x
template <typename T>
void WeightGradient(Mat<const T> dy, Mat<const T> x, Mat<T> dw_acc) {
  for (std::int64_t n = 0; n < dy.rows; ++n) {
    for (std::int64_t o = 0; o < dy.cols; ++o) {
      for (std::int64_t i = 0; i < x.cols; ++i) dw_acc(o, i) += dy(n, o) * x(n, i);
    }
  }
}

}  // namespace qlora::reference

#endif  // QLORA_BACKEND_REFERENCE_LINEAR_H_
