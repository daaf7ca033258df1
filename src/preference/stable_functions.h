// Functions of preference losses, for real numbers and for those of a complex step. They are finite
// wherever their value is, and lose no digits.
#ifndef QLORA_PREFERENCE_STABLE_FUNCTIONS_H_
#define QLORA_PREFERENCE_STABLE_FUNCTIONS_H_

#include <cmath>
#include <complex>
#include <numbers>

namespace qlora {

inline double Expm1(double x) { return std::expm1(x); }
// exp(z) - 1 = expm1(x) cos y - 2 sin^2(y / 2) + i exp(x) sin y
inline std::complex<double> Expm1(const std::complex<double>& z) {
  const double half = std::sin(z.imag() / 2);
  return {std::expm1(z.real()) * std::cos(z.imag()) - 2 * half * half,
          std::exp(z.real()) * std::sin(z.imag())};
}

inline double Log1p(double x) { return std::log1p(x); }
inline std::complex<double> Log1p(const std::complex<double>& z) {
  return {std::log1p(z.real()), std::atan2(z.imag(), 1 + z.real())};  // imaginary parts are tiny
}

// log(1 + exp(x)) = -log s(-x)
template <typename T>
T Softplus(const T& x) {
  return std::real(x) > 0 ? x + Log1p(std::exp(-x)) : Log1p(std::exp(x));
}

// s(x) = 1 / (1 + exp(-x))
template <typename T>
T Sigmoid(const T& x) {
  if (std::real(x) >= 0) return 1.0 / (1.0 + std::exp(-x));
  const T e = std::exp(x);
  return e / (1.0 + e);
}

// log(1 - exp(x)), x < 0. Near 0 the difference would lose its digits, far from it the sum.
template <typename T>
T LogOneMinusExp(const T& x) {
  return std::real(x) > -std::numbers::ln2 ? std::log(-Expm1(x)) : Log1p(-std::exp(x));
}

// s(c z) exp(-z), c > 1: neither factor alone is finite for all z.
template <typename T>
T ExpOfSigmoid(const T& z, double c) {
  return std::exp(-z - Softplus(-c * z));
}

}  // namespace qlora

#endif  // QLORA_PREFERENCE_STABLE_FUNCTIONS_H_
