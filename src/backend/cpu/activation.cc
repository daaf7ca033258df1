// The gated activations of the feed-forward layers, y = act(gate) * up, and their gradient.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/activation.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <hwy/contrib/math/math-inl.h>

#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/row_ops.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

template <class D>
struct Activated {
  hn::Vec<D> value;
  hn::Vec<D> slope;
};

// Both activations are x sigmoid(z(x)): silu has z = x, and gelu by tanh has
// z = 2 sqrt(2 / pi) (x + 0.044715 x^3), because (1 + tanh(z / 2)) / 2 = sigmoid(z). The slope is
//   sigmoid(z) + x sigmoid(z) (1 - sigmoid(z)) z'(x)
// The error of Highway's Exp is at most one unit in the last place.
template <class D>
HWY_INLINE Activated<D> Activate(D d, Activation activation, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0f);
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
  const auto value = hn::Mul(x, sigmoid);
  return {value, hn::MulAdd(hn::Mul(value, rest), z_slope, sigmoid)};
}

}  // namespace

void Gated(const ops::GatedActivation& op, Range rows) {
  const Activation activation = op.activation;
  for (std::int64_t n = rows.begin; n < rows.end; ++n) {
    const ConstRow gate(op.gate, n);
    const ConstRow up(op.up, n);
    const Row y(op.y, n);
    ForEachVector(op.y.cols, [&](auto d, std::int64_t i) HWY_ATTR {
      y.Store(d, hn::Mul(Activate(d, activation, gate.Load(d, i)).value, up.Load(d, i)), i);
    });
  }
}

void GatedBackward(const ops::GatedActivationBackward& op, Range rows) {
  const Activation activation = op.activation;
  for (std::int64_t n = rows.begin; n < rows.end; ++n) {
    const ConstRow gate(op.gate, n);
    const ConstRow up(op.up, n);
    const ConstRow dy(op.dy, n);
    const Row d_gate(op.d_gate, n);
    const Row d_up(op.d_up, n);
    ForEachVector(op.dy.cols, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto act = Activate(d, activation, gate.Load(d, i));
      const auto dv = dy.Load(d, i);
      const auto up_value = up.Load(d, i);
      d_gate.Store(d, hn::Mul(hn::Mul(dv, up_value), act.slope), i);
      d_up.Store(d, hn::Mul(dv, act.value), i);
    });
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(Gated);
void GatedRows(const ops::GatedActivation& op, Range rows) {
  HWY_DYNAMIC_DISPATCH(Gated)(op, rows);
}

HWY_EXPORT(GatedBackward);
void GatedBackwardRows(const ops::GatedActivationBackward& op, Range rows) {
  HWY_DYNAMIC_DISPATCH(GatedBackward)(op, rows);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE
