// The expert that all tokens have beside those that are chosen for each: steps 8c and 11 behind
// those of experts.cc. Forward, then the same steps in reverse.
#include "pass/shared_expert.h"

#include "pass/layer.h"

namespace qlora {

SharedExpertActivations LayoutSharedExpert(Carver& carver, const DecoderConfig& config,
                                           const Precision& precision, std::int64_t rows) {
  const std::int64_t f = config.moe.shared_intermediate_size;
  if (f == 0) return {};
  return {carver.Matrix(precision.activation, rows, f),
          carver.Matrix(precision.activation, rows, f),
          carver.Matrix(precision.activation, rows, 1)};
}

SharedExpertBuffers LayoutSharedExpertBuffers(Carver& carver, const DecoderConfig& config,
                                              const Precision& precision, std::int64_t rows,
                                              bool training) {
  const std::int64_t f = config.moe.shared_intermediate_size;
  SharedExpertBuffers out;
  if (f == 0) return out;
  out.act = carver.Matrix(precision.activation, rows, f);
  out.gated = carver.Matrix(precision.activation, rows, f);
  if (training) out.d_gated = carver.Matrix(precision.activation, rows, f);
  return out;
}

void Layer::ProjectSharedExpert() {
  if (!has_shared_expert()) return;
  // 8c. gate, up, weight = norm W^T + LoRA
  const SharedExpertActivations& a = a_.experts.shared;
  const LinearOutput out[] = {
      {a.gate, a_.u.shared_in[0]}, {a.up, a_.u.shared_in[1]}, {a.weight, a_.u.shared_in[2]}};
  ForwardGroup(context_, LinearGroup::kSharedIn, shared_.norm, out, Store::kSet);
}

void Layer::ActivateSharedExpert() {
  const SharedExpertActivations& a = a_.experts.shared;
  const SharedExpertBuffers& s = shared_.experts.shared;
  Run(ops::GatedActivation{config_.hidden_act, a.gate, a.up, s.act});
  Run(ops::GateRows{s.act, a.weight, s.gated});
}

void Layer::ForwardSharedExpert(const MatrixView& x_out) {
  if (!has_shared_expert()) return;
  // 11. x_out += (sigmoid(weight) * act(gate) * up) Wd^T.  As of other experts, the weight comes
  // before the linear, which has no bias.
  ActivateSharedExpert();
  const LinearOutput out{x_out, a_.u.shared_out[0]};
  ForwardGroup(context_, LinearGroup::kSharedOut, shared_.experts.shared.gated, {&out, 1},
               Store::kAdd);
}

void Layer::SharedExpertBackward(LoraAdapter& trained) {
  const SharedExpertActivations& a = a_.experts.shared;
  const SharedExpertBuffers& s = shared_.experts.shared;
  // forward 11
  ActivateSharedExpert();
  const ConstMatrixView dx = shared_.dx;
  BackwardGroup(context_, LinearGroup::kSharedOut, s.gated, {&dx, 1}, a_.u.shared_out, s.d_gated,
                trained);
  Run(ops::GateRowsBackward{s.d_gated, s.act, a.weight, a.weight, s.d_gated});
  Run(ops::GatedActivationBackward{config_.hidden_act, s.d_gated, a.gate, a.up, a.gate, a.up});
  // forward 8c. This sets d_norm, to which the other experts add.
  const ConstMatrixView d_in[] = {a.gate, a.up, a.weight};
  BackwardGroup(context_, LinearGroup::kSharedIn, shared_.norm, d_in, a_.u.shared_in,
                shared_.d_norm, trained);
}

}  // namespace qlora
