// The definitions of ops that work row by row or element by element, and of their gradients.
//
// Each op of ops.h is defined once, here and in the other files of this folder, as a scalar
// loop over T = float, double or std::complex<double>. Every formula is analytic in its inputs
// (x * x and never |x|^2, the maximum of a softmax over real parts), so that an imaginary step on
// an input gives the exact derivative in the imaginary part of the output.
// Derivations: docs/math/.
#ifndef QLORA_BACKEND_REFERENCE_ELEMENTWISE_H_
#define QLORA_BACKEND_REFERENCE_ELEMENTWISE_H_

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <numbers>
#include <numeric>
#include <span>
#include <type_traits>

#include "backend/ops.h"

namespace qlora::reference {

// A typed matrix (rows, cols); m(r, c) is an element.
template <typename T>
struct Mat {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  bool empty() const { return rows == 0 || cols == 0; }
  T& operator()(std::int64_t r, std::int64_t c) const { return data[r * stride + c]; }
  operator Mat<const T>() const { return {data, rows, cols, stride}; }
};

template <typename T>
void Put(Store store, T value, T& out) {
  out = store == Store::kAdd ? out + value : value;
}

// cap(x) = c tanh(x / c), or x where c is 0.
template <typename T>
T SoftCap(T x, T c) {
  return c == T(0) ? x : c * std::tanh(x / c);
}

// cap'(x) as a function of the capped value y = cap(x): 1 - (y / c)^2.
template <typename T>
T SoftCapSlope(T y, T c) {
  return c == T(0) ? T(1) : T(1) - (y / c) * (y / c);
}

// y = w x rstd,  rstd = (mean(x^2) + epsilon)^(-1/2)
template <typename T>
void RmsNorm(Mat<const T> x, Mat<const T> w, T epsilon, Mat<T> y, Mat<T> rstd) {
  for (std::int64_t n = 0; n < x.rows; ++n) {
    T sum = 0;
    for (std::int64_t d = 0; d < x.cols; ++d) sum += x(n, d) * x(n, d);
    rstd(0, n) = T(1) / std::sqrt(sum / static_cast<T>(x.cols) + epsilon);
    for (std::int64_t d = 0; d < x.cols; ++d) y(n, d) = w(0, d) * x(n, d) * rstd(0, n);
  }
}

// dx = rstd w dy - x rstd^3 mean(w dy x)
template <typename T>
void RmsNormBackward(Mat<const T> dy, Mat<const T> x, Mat<const T> w, Mat<const T> rstd, Mat<T> dx,
                     Store store) {
  for (std::int64_t n = 0; n < x.rows; ++n) {
    const T r = rstd(0, n);
    T sum = 0;
    for (std::int64_t d = 0; d < x.cols; ++d) sum += w(0, d) * dy(n, d) * x(n, d);
    const T mean = sum / static_cast<T>(x.cols);
    for (std::int64_t d = 0; d < x.cols; ++d) {
      Put(store, r * w(0, d) * dy(n, d) - x(n, d) * r * r * r * mean, dx(n, d));
    }
  }
}

// (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin) for dims i and i + K_rot / 2 of every head;
// the inverse has -sin.
template <typename T>
void Rope(std::span<const std::int32_t> positions, Mat<const T> cos, Mat<const T> sin,
          bool interleaved, std::int64_t heads, bool inverse, Mat<T> x_inout) {
  const std::int64_t head_dim = x_inout.cols / heads;
  const std::int64_t half = cos.cols;
  const std::int64_t step = interleaved ? 2 : 1;
  const std::int64_t apart = interleaved ? 1 : half;
  for (std::int64_t n = 0; n < x_inout.rows; ++n) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < half; ++i) {
        const T c = cos(positions[n], i);
        const T s = inverse ? -sin(positions[n], i) : sin(positions[n], i);
        T& x1 = x_inout(n, h * head_dim + step * i);
        T& x2 = x_inout(n, h * head_dim + step * i + apart);
        const T rotated = x1 * c - x2 * s;
        x2 = x2 * c + x1 * s;
        x1 = rotated;
      }
    }
  }
}

template <typename T>
struct ActivationValue {
  T value;
  T slope;
};

// silu(x) = x sigma(x),  silu'(x) = sigma(x) (1 + x (1 - sigma(x))),  sigma(x) = 1 / (1 + e^-x)
template <typename T>
ActivationValue<T> Silu(T x) {
  const T sigma = T(1) / (T(1) + std::exp(-x));
  return {x * sigma, sigma * (T(1) + x * (T(1) - sigma))};
}

// gelu(x) = x/2 (1 + t),  t = tanh(z),  z = sqrt(2 / pi) (x + 0.044715 x^3)
// gelu'(x) = (1 + t) / 2 + x/2 (1 - t^2) z',  z' = sqrt(2 / pi) (1 + 3 0.044715 x^2)
template <typename T>
ActivationValue<T> GeluTanh(T x) {
  const T c = static_cast<T>(std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
  const T a = static_cast<T>(0.044715);
  const T half = static_cast<T>(0.5);
  const T t = std::tanh(c * (x + a * x * x * x));
  const T z_slope = c * (T(1) + T(3) * a * x * x);
  return {half * x * (T(1) + t), half * (T(1) + t) + half * x * (T(1) - t * t) * z_slope};
}

// Phi(x) = (1 + erf(x / sqrt(2))) / 2.  With z = x / sqrt(2) and terms of one sign:
//   erf(z) = 2 / sqrt(pi) e^(-z^2) (z + 2 z^3 / 3 + 2^2 z^5 / (3 5) + 2^3 z^7 / (3 5 7) + ...)
template <typename T>
T NormalCdf(T x) {
  const T z = x / static_cast<T>(std::numbers::sqrt2);
  if constexpr (std::is_floating_point_v<T>) {
    return std::erfc(-z) / 2;
  } else {
    // Beyond, it is 0 or 1 to double.
    if (std::abs(std::real(z)) > 6) return std::real(z) > 0 ? T(1) : T(0);
    T sum = z;
    T term = z;
    for (int n = 1; n < 200; ++n) {
      term *= 2.0 * z * z / (2.0 * n + 1);
      sum += term;
    }
    return (T(1) + 2 * std::numbers::inv_sqrtpi * std::exp(-z * z) * sum) / 2.0;
  }
}

// gelu(x) = x Phi(x),  gelu'(x) = Phi(x) + x e^(-x^2 / 2) / sqrt(2 pi)
template <typename T>
ActivationValue<T> Gelu(T x) {
  const T c = static_cast<T>(std::numbers::inv_sqrtpi / std::numbers::sqrt2);
  const T cdf = NormalCdf(x);
  return {x * cdf, cdf + x * c * std::exp(-x * x / T(2))};
}

// sigma(x),  sigma'(x) = sigma(x) (1 - sigma(x))
template <typename T>
ActivationValue<T> Sigmoid(T x) {
  const T sigma = T(1) / (T(1) + std::exp(-x));
  return {sigma, sigma * (T(1) - sigma)};
}

template <typename T>
ActivationValue<T> Activate(Activation activation, T x) {
  switch (activation) {
    case Activation::kSilu:
      return Silu(x);
    case Activation::kGeluTanh:
      return GeluTanh(x);
    case Activation::kGelu:
      return Gelu(x);
    case Activation::kSigmoid:
      return Sigmoid(x);
    case Activation::kIdentity:
    case Activation::kClampedSwiglu:  // of two values
      break;
  }
  return {x, T(1)};
}

// y = g sigma(a g) (u + 1),  g = min(gate, 7),  u = clamp(up, -7, 7),  a = 1.702, and its slopes
template <typename T>
struct GatedValue {
  T value;
  T gate_slope;
  T up_slope;
};
template <typename T>
GatedValue<T> ClampedSwiglu(T gate, T up) {
  constexpr double kLimit = 7;
  const T a = static_cast<T>(1.702);
  const bool is_gate_clamped = std::real(gate) > kLimit;
  const bool is_up_clamped = std::abs(std::real(up)) > kLimit;
  const T g = is_gate_clamped ? static_cast<T>(kLimit) : gate;
  const T u = is_up_clamped ? static_cast<T>(std::copysign(kLimit, std::real(up))) : up;
  const T sigma = T(1) / (T(1) + std::exp(-a * g));
  const T slope = sigma * (T(1) + a * g * (T(1) - sigma));
  return {g * sigma * (u + T(1)), is_gate_clamped ? T(0) : slope * (u + T(1)),
          is_up_clamped ? T(0) : g * sigma};
}

// y = act(gate) up
template <typename T>
void GatedActivation(Activation activation, Mat<const T> gate, Mat<const T> up, Mat<T> y) {
  for (std::int64_t n = 0; n < y.rows; ++n) {
    for (std::int64_t f = 0; f < y.cols; ++f) {
      y(n, f) = activation == Activation::kClampedSwiglu
                    ? ClampedSwiglu(gate(n, f), up(n, f)).value
                    : Activate(activation, gate(n, f)).value * up(n, f);
    }
  }
}

// d_gate = dy up act'(gate);  d_up = dy act(gate)
template <typename T>
void GatedActivationBackward(Activation activation, Mat<const T> dy, Mat<const T> gate,
                             Mat<const T> up, Mat<T> d_gate, Mat<T> d_up) {
  for (std::int64_t n = 0; n < dy.rows; ++n) {
    for (std::int64_t f = 0; f < dy.cols; ++f) {
      const T gradient = dy(n, f);
      if (activation == Activation::kClampedSwiglu) {
        const GatedValue<T> y = ClampedSwiglu(gate(n, f), up(n, f));
        d_gate(n, f) = gradient * y.gate_slope;
        d_up(n, f) = gradient * y.up_slope;
        continue;
      }
      const ActivationValue<T> act = Activate(activation, gate(n, f));
      d_gate(n, f) = gradient * up(n, f) * act.slope;
      d_up(n, f) = gradient * act.value;
    }
  }
}

// log sum exp of count values, from the largest real part m: m + log(sum exp(x - m)).
template <typename T>
T LogSumExp(const T* x, std::int64_t count) {
  double largest = -std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, static_cast<double>(std::real(x[i])));
  }
  const T m = static_cast<T>(largest);
  T sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += std::exp(x[i] - m);
  return m + std::log(sum);
}

// row_loss = lse(c) - c[target],  c = cap(logits)
// d row_loss / d logits = (softmax(c) - onehot(target)) cap'(logits)
template <typename T>
void CrossEntropy(std::span<const std::int32_t> targets, T softcap, Mat<const T> row_scale,
                  Mat<T> logits_inout, Mat<T> logprob, Mat<T> hit, T smoothing, Mat<T> mean,
                  Mat<T> entropy) {
  const T uniform = smoothing / static_cast<T>(logits_inout.cols);
  for (std::int64_t n = 0; n < logits_inout.rows; ++n) {
    T* c = &logits_inout(n, 0);
    for (std::int64_t v = 0; v < logits_inout.cols; ++v) c[v] = SoftCap(c[v], softcap);
    const T lse = LogSumExp(c, logits_inout.cols);
    logprob(0, n) = c[targets[n]] - lse;
    const T sum = std::accumulate(c, c + logits_inout.cols, T(0));
    if (!mean.empty()) mean(0, n) = sum / static_cast<T>(logits_inout.cols);
    if (!entropy.empty()) {
      entropy(0, n) = T(0);
      for (std::int64_t v = 0; v < logits_inout.cols; ++v) {
        const T p = std::exp(c[v] - lse);
        if (p != T(0)) entropy(0, n) -= p * (c[v] - lse);  // 0 log 0 is 0
      }
    }
    // Without smoothing, logits of -infinity do not count.
    if (smoothing != T(0)) {
      logprob(0, n) = (T(1) - smoothing) * c[targets[n]] + uniform * sum - lse;
    }
    if (!hit.empty()) {
      hit(0, n) = std::none_of(c, c + logits_inout.cols, [&](const T& other) {
        return std::real(other) > std::real(c[targets[n]]);
      });
    }
    if (row_scale.empty()) continue;
    for (std::int64_t v = 0; v < logits_inout.cols; ++v) {
      const T label = uniform + (v == targets[n] ? T(1) - smoothing : T(0));
      c[v] = row_scale(0, n) * (std::exp(c[v] - lse) - label) * SoftCapSlope(c[v], softcap);
    }
  }
}

// kl = sum of q (log q - log p),  p and q = softmax(cap(logits)) and softmax(cap(base))
// d kl / d logits = (p - q) cap'(logits)
template <typename T>
void KlDivergence(T softcap, T scale, Mat<T> base_inout, Mat<T> logits_inout, Mat<T> kl) {
  for (std::int64_t n = 0; n < logits_inout.rows; ++n) {
    T* b = &base_inout(n, 0);
    T* c = &logits_inout(n, 0);
    for (std::int64_t v = 0; v < logits_inout.cols; ++v) {
      b[v] = SoftCap(b[v], softcap);
      c[v] = SoftCap(c[v], softcap);
    }
    const T base_lse = LogSumExp(b, base_inout.cols);
    const T lse = LogSumExp(c, logits_inout.cols);
    kl(0, n) = lse - base_lse;
    for (std::int64_t v = 0; v < logits_inout.cols; ++v) {
      const T q = std::exp(b[v] - base_lse);
      if (q != T(0)) kl(0, n) += q * (b[v] - c[v]);  // 0 log 0 is 0
      b[v] = q;
      c[v] = scale * (std::exp(c[v] - lse) - q) * SoftCapSlope(c[v], softcap);
    }
  }
}

// y += magnitude (2 u - 1), u uniform
template <typename T>
void AddNoise(RandomKey key, Mat<const T> magnitude, Mat<T> y_acc) {
  for (std::int64_t n = 0; n < y_acc.rows; ++n) {
    for (std::int64_t d = 0; d < y_acc.cols; ++d) {
      const float u = RandomUniform(key, static_cast<std::uint64_t>(n * y_acc.cols + d));
      y_acc(n, d) += magnitude(0, n) * static_cast<T>(2 * u - 1);
    }
  }
}

// y = [y +] x gain + bias, column by column
template <typename T>
void ScaleColumns(Mat<const T> x, Mat<const T> gain, Mat<const T> bias, Mat<T> y, Store store) {
  for (std::int64_t n = 0; n < x.rows; ++n) {
    for (std::int64_t o = 0; o < x.cols; ++o) {
      Put(store, x(n, o) * gain(0, o) + (bias.empty() ? T(0) : bias(0, o)), y(n, o));
    }
  }
}

// dots = sum over n of x y
template <typename T>
void ColumnDots(Mat<const T> x, Mat<const T> y, Mat<T> dots) {
  for (std::int64_t o = 0; o < x.cols; ++o) {
    T sum = 0;
    for (std::int64_t n = 0; n < x.rows; ++n) sum += x(n, o) * y(n, o);
    dots(0, o) = sum;
  }
}

}  // namespace qlora::reference

#endif  // QLORA_BACKEND_REFERENCE_ELEMENTWISE_H_
