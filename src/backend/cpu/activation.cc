// Gated activations, y = act(gate) * up, and their gradient.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/activation.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include "backend/cpu/activation-inl.h"
#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/row_ops.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
void Gated(const ops::GatedActivation& op, Range rows) {
  const Activation activation = op.activation;
  for (std::int64_t n = rows.begin; n < rows.end; ++n) {
    const ConstRow gate(op.gate, n);
    const ConstRow up(op.up, n);
    const Row y(op.y, n);
    ForEachVector(op.y.cols, [&](auto d, std::int64_t i) HWY_ATTR {
      if (activation == Activation::kClampedSwiglu) {
        y.Store(d, ClampedSwiglu(d, gate.Load(d, i), up.Load(d, i)).value, i);
      } else {
        y.Store(d, hn::Mul(Activate(d, activation, gate.Load(d, i)).value, up.Load(d, i)), i);
      }
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
      const auto dv = dy.Load(d, i);
      const auto up_value = up.Load(d, i);
      if (activation == Activation::kClampedSwiglu) {
        const auto y = ClampedSwiglu(d, gate.Load(d, i), up_value);
        d_gate.Store(d, hn::Mul(dv, y.gate_slope), i);
        d_up.Store(d, hn::Mul(dv, y.up_slope), i);
        return;
      }
      const auto act = Activate(d, activation, gate.Load(d, i));
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
