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

// Two activations are x sigmoid(z(x)): silu has z = x, and gelu by tanh has
// z = 2 sqrt(2 / pi) (x + 0.044715 x^3), because (1 + tanh(z / 2)) / 2 = sigmoid(z). The slope is
//   sigmoid(z) + x sigmoid(z) (1 - sigmoid(z)) z'(x)
// The error of Highway's Exp is at most one unit in the last place.
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
  // Beyond 87 the sigmoid is 0 or 1 to float32, and within, neither e nor 1 / e overflows.
  const auto e = hn::Exp(d, hn::Min(hn::Max(hn::Neg(z), hn::Set(d, -87.0f)), hn::Set(d, 87.0f)));
  const auto sigmoid = hn::Div(one, hn::Add(one, e));
  const auto rest = hn::Mul(e, sigmoid);  // 1 - sigmoid, without cancellation
  if (activation == Activation::kSigmoid) return {sigmoid, hn::Mul(sigmoid, rest)};
  const auto value = hn::Mul(x, sigmoid);
  return {value, hn::MulAdd(hn::Mul(value, rest), z_slope, sigmoid)};
}

}  // namespace
}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QLORA_BACKEND_CPU_ACTIVATION_INL_H_
