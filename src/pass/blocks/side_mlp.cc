#include "pass/blocks/side_mlp.h"

#include <vector>

#include "base/matrix.h"
#include "pass/linear_group.h"

namespace qlora {
namespace {

MatrixView GateOf(const MatrixView& gate_up) { return Columns(gate_up, 0, gate_up.cols / 2); }
MatrixView UpOf(const MatrixView& gate_up) {
  return Columns(gate_up, gate_up.cols / 2, gate_up.cols / 2);
}

}  // namespace

void SideMlp::Layout(LayerCarver& c, Activations& a) {
  const MoeConfig& moe = c.config.side_moe;
  DenseMlp::Layout(c, a.dense);
  a.slots = LayoutSlots(c, moe);
  a.router_rstd = c.Wide(1, c.rows);
  a.pair_scales = c.Wide(c.rows, moe.num_experts_per_tok);
  a.rstd = c.Wide(1, c.rows);
  a.gate_up = c.Act(c.rows * moe.num_experts_per_tok, 2 * c.config.side_intermediate_size);
  a.sum = c.Wide(c.rows, c.config.hidden_size);
  a.sum_rstd = c.Wide(1, c.rows);
  a.f = LayoutBranch(c);
}

void SideMlp::LayoutScratch(LayerCarver& c, Activations& a) {
  Scratch& s = a.scratch;
  const MoeConfig& moe = c.config.side_moe;
  const std::int64_t slots = c.rows * moe.num_experts_per_tok;
  s.pairs = c.Wide(c.rows, moe.num_experts_per_tok);
  s.act = c.Act(slots, c.config.side_intermediate_size);
  if (c.training) {
    s.d_dense = c.Act(c.rows, c.config.hidden_size);
    s.d_sum = c.Act(c.rows, c.config.hidden_size);
    s.d_act = c.Act(slots, c.config.side_intermediate_size);
  }
  DenseMlp::LayoutScratch(c, a.dense);
}

SideMlp::SideMlp(const LayerContext& context, Activations& a)
    : context_(context),
      config_(context.config()),
      w_(context.weights()),
      a_(a),
      s_(a.scratch),
      b_(context.buffers.experts),
      dense_(context, a.dense, w_.side.dense_norm) {}

void SideMlp::Forward(const BlockInput& in, const MatrixView& x_out) {
  Recompute(in);
  // x_out = x + norm
  CopyResidual(context_, in.x(), x_out);
  context_.Run(ops::Add{context_.buffers.norm, x_out});
}

void SideMlp::Recompute(const BlockInput& in) {
  const MatrixView& norm = context_.buffers.norm;
  const float epsilon = config_.rms_norm_eps;
  // 8 to 10a. f = RMSNorm(MLP)
  dense_.ForwardTo(a_.f.y);
  // 10b
  Route(in);
  // 10c to 10e. f = f + RMSNorm(sum)
  RunExperts(in);
  context_.Run(ops::RmsNorm{a_.sum, w_.side.sum_norm, epsilon, norm, a_.sum_rstd});
  context_.Run(ops::Add{norm, a_.f.y});
  // 10f. norm = RMSNorm(f), which joins the stream
  context_.Run(ops::RmsNorm{a_.f.y, w_.post_mlp_norm, epsilon, norm, a_.f.rstd});
}

void SideMlp::Route(const BlockInput& in) {
  // 10b. router = RMSNorm(x) Wr^T + LoRA;  each token's experts and their weights
  ExpertSlots& e = a_.slots;
  const MatrixView& norm = context_.buffers.norm;
  context_.Run(
      ops::RmsNorm{in.x(), w_.side.router_norm, config_.stream_eps(), norm, a_.router_rstd});
  const LinearOutput logits{e.router, context_.u().side_router[0]};
  ForwardGroup(context_, LinearGroup::kSideRouter, norm, {&logits, 1}, Store::kSet);
  context_.Run(ops::RouteExperts{e.router, true, e.routing, e.pair_weights});
  FetchBegin(context_, e);
  const MatrixView pairs = Reshape(s_.pairs, 1);
  const MatrixView scales = Reshape(a_.pair_scales, 1);
  context_.Run(ops::GatherRows{w_.side.expert_scale, e.routing.experts, scales});
  context_.Run(ops::ScaleRows{Reshape(e.pair_weights, 1), Reshape(scales, pairs.rows), pairs});
  context_.Run(ops::GatherRows{pairs, e.routing.pairs, Reshape(e.slot_weights, 1)});
}

void SideMlp::RunExperts(const BlockInput& in) {
  const ExpertSlots& e = a_.slots;
  // 10c. slot = RMSNorm(x) of each slot's token;  gate, up = slot W^T + LoRA
  GatherSlots(in);
  context_.Observe(LinearGroup::kSideIn, context_.buffers.norm);
  const std::vector<LinearView> gate_up = BindExperts(context_, LinearGroup::kSideIn);
  const LinearOutput gate_up_out =
      OutputOfExperts(a_.gate_up, context_.u().side_in[0], gate_up, 1, 0);
  const SumOrder order = context_.inputs.order;
  context_.Run(ops::ExpertLinear{gate_up, e.begin, b_.slot, {&gate_up_out, 1}, order});
  // 10d. act = weight * act(gate) * up
  Activate();
  context_.Run(ops::ScaleRows{s_.act, e.slot_weights, s_.act});
  // 10e. sum = the sum over a token's slots of act Wd^T + LoRA
  context_.Observe(LinearGroup::kSideOut, s_.act);
  const std::vector<LinearView> down = BindExperts(context_, LinearGroup::kSideOut);
  const LinearOutput down_out = OutputOfExperts(b_.slot, context_.u().side_out[0], down, 1, 0);
  context_.Run(ops::ExpertLinear{down, e.begin, s_.act, {&down_out, 1}, order});
  context_.Run(ops::Zero{a_.sum});
  context_.Run(ops::ScatterAddRows{b_.slot, e.routing.tokens, a_.sum});
}

void SideMlp::GatherSlots(const BlockInput& in) {
  const MatrixView& norm = context_.buffers.norm;
  context_.Run(ops::RmsNorm{in.x(), w_.side.norm, config_.stream_eps(), norm, a_.rstd});
  context_.Run(ops::GatherRows{norm, a_.slots.routing.tokens, b_.slot});
}

void SideMlp::Activate() {
  context_.Run(
      ops::GatedActivation{config_.hidden_act, GateOf(a_.gate_up), UpOf(a_.gate_up), s_.act});
}

void SideMlp::Backward(const BlockInput& in, LoraAdapter& trained) {
  const MatrixView& d_norm = context_.buffers.d_norm;
  // 10f, and the norm of 10e
  context_.Run(ops::RmsNormBackward{context_.buffers.dx, a_.f.y, w_.post_mlp_norm, a_.f.rstd,
                                    d_norm, Store::kSet});
  context_.Run(
      ops::RmsNormBackward{d_norm, a_.sum, w_.side.sum_norm, a_.sum_rstd, s_.d_sum, Store::kSet});
  // 10a to 7
  dense_.BackwardFrom(d_norm, s_.d_dense, in, trained);
  ExpertsBackward(in, trained);
  RouterBackward(in, trained);
}

void SideMlp::ExpertsBackward(const BlockInput& in, LoraAdapter& trained) {
  const PerLinear<LoraLinear>& loras = trained.layers()[context_.layer];
  const ExpertSlots& e = a_.slots;
  // 10e
  context_.Run(ops::GatherRows{s_.d_sum, e.routing.tokens, b_.d_slot});
  Activate();
  context_.Run(ops::ScaleRows{s_.act, e.slot_weights, s_.act});
  const std::vector<LinearView> down = BindGroup(context_, LinearGroup::kSideOut, &trained);
  const ConstMatrixView d_down = b_.d_slot;
  const std::vector<LinearGradient> of_down =
      ExpertGradients(loras.side_out, {&d_down, 1}, context_.u().side_out);
  context_.Run(ops::ExpertLinearBackward{down, e.begin, s_.act, of_down, s_.d_act});
  // 10d. The gradients replace gate and up.
  Activate();
  context_.Run(ops::RowDots{s_.d_act, s_.act, b_.d_slot_weights});
  context_.Run(ops::ScaleRows{s_.d_act, e.slot_weights, s_.d_act});
  const MatrixView gate = GateOf(a_.gate_up);
  const MatrixView up = UpOf(a_.gate_up);
  context_.Run(ops::GatedActivationBackward{config_.hidden_act, s_.d_act, gate, up, gate, up});
  // 10c. slot is computed again from x.
  GatherSlots(in);
  const std::vector<LinearView> gate_up = BindGroup(context_, LinearGroup::kSideIn, &trained);
  const ConstMatrixView d_gate_up = a_.gate_up;
  const std::vector<LinearGradient> of_gate_up =
      ExpertGradients(loras.side_in, {&d_gate_up, 1}, context_.u().side_in);
  context_.Run(ops::ExpertLinearBackward{gate_up, e.begin, b_.slot, of_gate_up, b_.d_slot});
  const MatrixView& d_norm = context_.buffers.d_norm;
  context_.Run(ops::Zero{d_norm});
  context_.Run(ops::ScatterAddRows{b_.d_slot, e.routing.tokens, d_norm});
  context_.Run(ops::RmsNormBackward{d_norm, in.x(), w_.side.norm, a_.rstd, context_.buffers.dx,
                                    Store::kAdd});
}

void SideMlp::RouterBackward(const BlockInput& in, LoraAdapter& trained) {
  const ExpertSlots& e = a_.slots;
  const MatrixView& norm = context_.buffers.norm;
  const MatrixView& d_norm = context_.buffers.d_norm;
  // 10b
  const MatrixView d_pairs = Reshape(b_.d_pair_weights, 1);
  context_.Run(ops::GatherRows{Reshape(b_.d_slot_weights, 1), e.routing.slots, d_pairs});
  context_.Run(ops::ScaleRows{d_pairs, Reshape(a_.pair_scales, d_pairs.rows), d_pairs});
  context_.Run(ops::RouteExpertsBackward{b_.d_pair_weights, e.routing.experts, e.pair_weights, true,
                                         e.router});
  context_.Run(
      ops::RmsNorm{in.x(), w_.side.router_norm, config_.stream_eps(), norm, a_.router_rstd});
  const ConstMatrixView d_router = e.router;
  BackwardGroup(context_, LinearGroup::kSideRouter, norm, {&d_router, 1}, context_.u().side_router,
                d_norm, trained);
  context_.Run(ops::RmsNormBackward{d_norm, in.x(), w_.side.router_norm, a_.router_rstd,
                                    context_.buffers.dx, Store::kAdd});
}

}  // namespace qlora
