#include "pass/blocks/dense_mlp.h"

#include "base/matrix.h"
#include "pass/linear_group.h"

namespace qlora {

void DenseMlp::Layout(LayerCarver& c, Activations& a) {
  const std::int64_t f = c.sizes.intermediate_size;
  if (c.config.fused_gate_up) {
    a.gate_up = c.Act(c.rows, 2 * f);
    a.gate = Columns(a.gate_up, 0, f);
    a.up = Columns(a.gate_up, f, f);
  } else {
    a.gate = c.Act(c.rows, f);
    a.up = c.Act(c.rows, f);
  }
  a.down = LayoutBranch(c);
}

void DenseMlp::LayoutScratch(LayerCarver& c, Activations& a) {
  Scratch& s = a.scratch;
  const std::int64_t f = c.sizes.intermediate_size;
  s.act = c.Act(c.rows, f);
  if (c.training) s.d_act = c.LastInputGradient(c.rows, f);
}

DenseMlp::DenseMlp(const LayerContext& context, Activations& a)
    : DenseMlp(context, a, context.weights().post_mlp_norm) {}

DenseMlp::DenseMlp(const LayerContext& context, Activations& a, const ConstMatrixView& weight)
    : context_(context),
      a_(a),
      s_(a.scratch),
      down_(context, LinearGroup::kDown, a.down, weight, context.u().down[0]) {
  const std::vector<MatrixView>& u = context.u().gate_up;
  if (context.config().fused_gate_up) {
    gate_up_ = {{a_.gate_up, u[0]}};
    d_gate_up_ = {a_.gate_up};
  } else {
    gate_up_ = {{a_.gate, u[0]}, {a_.up, u[1]}};
    d_gate_up_ = {a_.gate, a_.up};
  }
}

void DenseMlp::Forward(const BlockInput& in, const MatrixView& x_out) {
  // 8. gate, up = norm W^T + b + LoRA
  Project();
  // 9. act = act(gate) * up
  Activate();
  // 10. x_out = x + [RMSNorm](act Wd^T)
  down_.Forward(s_.act, in.x(), x_out);
}

void DenseMlp::Recompute(const BlockInput&) {
  Project();
  if (!down_.has_norm()) return;
  Activate();
  down_.Norm(s_.act, context_.buffers.norm);
}

void DenseMlp::Backward(const BlockInput& in, LoraAdapter& trained) {
  // 10
  Activate();
  down_.Backward(s_.act, s_.d_act, trained);
  GatesBackward(in, trained);
}

void DenseMlp::ForwardTo(const MatrixView& out) {
  Project();
  Activate();
  down_.Norm(s_.act, out);
}

void DenseMlp::BackwardFrom(const ConstMatrixView& d_out, const MatrixView& d_y,
                            const BlockInput& in, LoraAdapter& trained) {
  down_.NormBackward(d_out, d_y);
  Activate();
  down_.LinearBackward(s_.act, d_y, s_.d_act, trained);
  GatesBackward(in, trained);
}

void DenseMlp::GatesBackward(const BlockInput& in, LoraAdapter& trained) {
  // 9. The gradients replace gate and up.
  context_.Run(ops::GatedActivationBackward{context_.config().hidden_act, s_.d_act, a_.gate, a_.up,
                                            a_.gate, a_.up});
  // 8, 7
  in.Backward(LinearGroup::kGateUp, d_gate_up_, context_.u().gate_up, trained);
}

void DenseMlp::Project() {
  ForwardGroup(context_, LinearGroup::kGateUp, context_.buffers.norm, gate_up_, Store::kSet);
}

void DenseMlp::Activate() {
  context_.Run(ops::GatedActivation{context_.config().hidden_act, a_.gate, a_.up, s_.act});
}

}  // namespace qlora
