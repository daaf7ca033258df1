#include "pass/blocks/shared_expert.h"

#include "pass/linear_group.h"

namespace qlora {

SharedExpert::Activations SharedExpert::Layout(LayerCarver& c) {
  const std::int64_t f = c.config.moe.shared_intermediate_size;
  if (f == 0) return {};
  return {c.Act(c.rows, f), c.Act(c.rows, f), c.Act(c.rows, 1)};
}

SharedExpert::Scratch SharedExpert::LayoutScratch(Carver& carver, const DecoderConfig& config,
                                                  const Precision& precision, std::int64_t rows,
                                                  bool training) {
  const std::int64_t f = config.moe.shared_intermediate_size;
  Scratch out;
  if (f == 0) return out;
  out.act = carver.Matrix(precision.activation, rows, f);
  out.gated = carver.Matrix(precision.activation, rows, f);
  if (training) out.d_gated = carver.Matrix(precision.activation, rows, f);
  return out;
}

void SharedExpert::Project() {
  const std::vector<MatrixView>& u = context_.u().shared_in;
  const LinearOutput out[] = {{a_.gate, u[0]}, {a_.up, u[1]}, {a_.weight, u[2]}};
  ForwardGroup(context_, LinearGroup::kSharedIn, context_.buffers.norm, out, Store::kSet);
}

void SharedExpert::Forward(const MatrixView& x_out) {
  // As of other experts, the weight comes before the linear, which has no bias.
  Activate();
  const LinearOutput out{x_out, context_.u().shared_out[0]};
  ForwardGroup(context_, LinearGroup::kSharedOut, s_.gated, {&out, 1}, Store::kAdd);
}

void SharedExpert::Backward(LoraAdapter& trained) {
  // forward 11
  Activate();
  const ConstMatrixView dx = context_.buffers.dx;
  BackwardGroup(context_, LinearGroup::kSharedOut, s_.gated, {&dx, 1}, context_.u().shared_out,
                s_.d_gated, trained);
  context_.Run(ops::GateRowsBackward{s_.d_gated, s_.act, a_.weight, a_.weight, s_.d_gated});
  context_.Run(ops::GatedActivationBackward{context_.config().hidden_act, s_.d_gated, a_.gate,
                                            a_.up, a_.gate, a_.up});
  // forward 8c
  const ConstMatrixView d_in[] = {a_.gate, a_.up, a_.weight};
  BackwardGroup(context_, LinearGroup::kSharedIn, context_.buffers.norm, d_in,
                context_.u().shared_in, context_.buffers.d_norm, trained);
}

void SharedExpert::Activate() {
  context_.Run(ops::GatedActivation{context_.config().hidden_act, a_.gate, a_.up, s_.act});
  context_.Run(ops::GateRows{s_.act, a_.weight, s_.gated});
}

}  // namespace qlora
