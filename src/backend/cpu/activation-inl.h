// Activations and their slopes in float32 lanes. Included once per target.
#if defined(QLORA_BACKEND_CPU_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_BACKEND_CPU_ACTIVATION_INL_H_
#undef QLORA_BACKEND_CPU_ACTIVATION_INL_H_
#else
#define QLORA_BACKEND_CPU_ACTIVATION_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>

#include <iterator>

#include "backend/cpu/lanes-inl.h"
#include "backend/recurrent_ops.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

template <class D>
struct Activated {
  hn::Vec<D> value;
  hn::Vec<D> slope;
};

// sigmoid(z) and 1 - sigmoid(z), without cancellation. The error of Highway's Exp is at most one
// unit in the last place.
template <class D>
struct Sigmoids {
  hn::Vec<D> sigmoid;
  hn::Vec<D> rest;
};
template <class D>
HWY_INLINE Sigmoids<D> Sigmoid(D d, hn::Vec<D> z) {
  const auto one = hn::Set(d, 1.0f);
  // Beyond 87 the sigmoid is 0 or 1 to float32, and within, neither e nor 1 / e overflows.
  const auto e = hn::Exp(d, hn::Min(hn::Max(hn::Neg(z), hn::Set(d, -87.0f)), hn::Set(d, 87.0f)));
  const auto sigmoid = hn::Div(one, hn::Add(one, e));
  return {sigmoid, hn::Mul(e, sigmoid)};
}

// x Phi(x) and its slope Phi(x) + x phi(x), where phi = e^(-x^2 / 2) / sqrt(2 pi) is the normal
// density and Phi its integral. With t = |x|, Phi(-t) = e^(-t^2 / 2) r(t) has a smooth r, which is
// s = 1 / (1 + 0.4 t) times a polynomial in s: of degree 9, fitted for the least relative error
// over t < 14, it errs by 3e-9 of r.
template <class D>
HWY_INLINE Activated<D> Gelu(D d, hn::Vec<D> x) {
  constexpr float kFit[] = {0.0320988297f, -0.176181003f, 0.380799234f,  -0.371991366f,
                            0.117761344f,  -0.025898926f, 0.0910065472f, 0.13320981f,
                            0.159619242f,  0.159576297f};
  const auto one = hn::Set(d, 1.0f);
  const auto t = hn::Abs(x);
  // Beyond 13, Phi is 0 or 1 to float32.
  const auto half_square = hn::Min(hn::Mul(hn::Mul(hn::Set(d, 0.5f), t), t), hn::Set(d, 87.0f));
  const auto e = hn::Exp(d, hn::Neg(half_square));
  const auto s = hn::Div(one, hn::MulAdd(hn::Set(d, 0.4f), t, one));
  auto r = hn::Set(d, kFit[0]);
  for (std::size_t i = 1; i < std::size(kFit); ++i) r = hn::MulAdd(r, s, hn::Set(d, kFit[i]));
  const auto tail = hn::Mul(hn::Mul(e, s), r);
  const auto cdf = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail));
  const auto density = hn::Mul(hn::Set(d, 0.3989422804f), e);
  return {hn::Mul(x, cdf), hn::MulAdd(x, density, cdf)};
}

// Two activations are x sigmoid(z(x)): silu has z = x, and gelu by tanh has
// z = 2 sqrt(2 / pi) (x + 0.044715 x^3), because (1 + tanh(z / 2)) / 2 = sigmoid(z). The slope is
//   sigmoid(z) + x sigmoid(z) (1 - sigmoid(z)) z'(x)
template <class D>
HWY_INLINE Activated<D> Activate(D d, Activation activation, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0f);
  if (activation == Activation::kIdentity) return {x, one};
  if (activation == Activation::kGelu) return Gelu(d, x);
  auto z = x;
  auto z_slope = one;
  if (activation == Activation::kGeluTanh) {
    const auto c = hn::Set(d, 1.5957691216057308f);
    const auto ax2 = hn::Mul(hn::Set(d, 0.044715f), hn::Mul(x, x));
    z = hn::Mul(hn::Mul(c, x), hn::Add(one, ax2));
    z_slope = hn::Mul(c, hn::MulAdd(hn::Set(d, 3.0f), ax2, one));
  }
  const auto [sigmoid, rest] = Sigmoid(d, z);
  if (activation == Activation::kSigmoid) return {sigmoid, hn::Mul(sigmoid, rest)};
  const auto value = hn::Mul(x, sigmoid);
  return {value, hn::MulAdd(hn::Mul(value, rest), z_slope, sigmoid)};
}

// kClampedSwiglu of gate and up, with its slopes.
template <class D>
struct GatedValue {
  hn::Vec<D> value;
  hn::Vec<D> gate_slope;
  hn::Vec<D> up_slope;
};
template <class D>
HWY_INLINE GatedValue<D> ClampedSwiglu(D d, hn::Vec<D> gate, hn::Vec<D> up) {
  const auto one = hn::Set(d, 1.0f);
  const auto a = hn::Set(d, 1.702f);
  const auto limit = hn::Set(d, 7.0f);
  const auto g = hn::Min(gate, limit);
  const auto factor = hn::Add(hn::Min(hn::Max(up, hn::Neg(limit)), limit), one);
  const auto [sigmoid, rest] = Sigmoid(d, hn::Mul(a, g));
  const auto swish = hn::Mul(g, sigmoid);
  const auto slope = hn::MulAdd(hn::Mul(a, swish), rest, sigmoid);
  return {hn::Mul(swish, factor), hn::IfThenElseZero(hn::Le(gate, limit), hn::Mul(slope, factor)),
          hn::IfThenElseZero(hn::Le(hn::Abs(up), limit), swish)};
}

}  // namespace
}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QLORA_BACKEND_CPU_ACTIVATION_INL_H_
