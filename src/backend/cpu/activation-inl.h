// Activations and their slopes in float32 lanes. Included once per target.
#if defined(QLORA_BACKEND_CPU_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_BACKEND_CPU_ACTIVATION_INL_H_
#undef QLORA_BACKEND_CPU_ACTIVATION_INL_H_
#else
#define QLORA_BACKEND_CPU_ACTIVATION_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>

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

// Two activations are x sigmoid(z(x)): silu has z = x, and gelu by tanh has
// z = 2 sqrt(2 / pi) (x + 0.044715 x^3), because (1 + tanh(z / 2)) / 2 = sigmoid(z). The slope is
//   sigmoid(z) + x sigmoid(z) (1 - sigmoid(z)) z'(x)
template <class D>
HWY_INLINE Activated<D> Activate(D d, Activation activation, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0f);
  if (activation == Activation::kIdentity) return {x, one};
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
