// The steps continue the numbers of layer.cc: step 10 becomes 10a to 10f.
#include "pass/side_experts.h"

#include <vector>

#include "pass/layer.h"

namespace qlora {
namespace {

MatrixView GateOf(const MatrixView& gate_up) { return Columns(gate_up, 0, gate_up.cols / 2); }
MatrixView UpOf(const MatrixView& gate_up) {
  return Columns(gate_up, gate_up.cols / 2, gate_up.cols / 2);
}

}  // namespace

SideActivations LayoutSide(Carver& carver, const DecoderConfig& config, const Precision& precision,
                           std::int64_t rows) {
  SideActivations out;
  const MoeConfig& moe = config.side_moe;
  if (moe.num_experts == 0) return out;
  const std::int64_t d = config.hidden_size;
  const auto norm = [&] { return carver.Matrix(precision.wide, 1, rows); };
  out.dense = carver.Matrix(precision.activation, rows, d);
  out.dense_rstd = norm();
  out.router_rstd = norm();
  out.pair_scales = carver.Matrix(precision.wide, rows, moe.num_experts_per_tok);
  out.rstd = norm();
  out.gate_up = carver.Matrix(precision.activation, rows * moe.num_experts_per_tok,
                              2 * config.side_intermediate_size);
  out.sum = carver.Matrix(precision.wide, rows, d);
  out.sum_rstd = norm();
  return out;
}

SideScratch LayoutSideScratch(Carver& carver, const DecoderConfig& config,
                              const Precision& precision, std::int64_t rows, bool training) {
  SideScratch out;
  const MoeConfig& moe = config.side_moe;
  if (moe.num_experts == 0) return out;
  const std::int64_t slots = rows * moe.num_experts_per_tok;
  const auto act = [&](std::int64_t count, std::int64_t cols) {
    return carver.Matrix(precision.activation, count, cols);
  };
  out.pairs = carver.Matrix(precision.wide, rows, moe.num_experts_per_tok);
  out.act = act(slots, config.side_intermediate_size);
  if (!training) return out;
  out.d_dense = act(rows, config.hidden_size);
  out.d_sum = act(rows, config.hidden_size);
  out.d_act = act(slots, config.side_intermediate_size);
  return out;
}

void Layer::ForwardSide() {
  const SideActivations& s = a_.side;
  const SideWeights& w = w_.side;
  const float epsilon = config_.stream_eps();
  // 10a. dense = act Wd^T;  down = RMSNorm(dense)
  const LinearOutput dense{s.dense, a_.u.down[0]};
  ForwardGroup(context_, LinearGroup::kDown, a_.scratch.act, {&dense, 1}, Store::kSet);
  Run(ops::RmsNorm{s.dense, w.dense_norm, config_.rms_norm_eps, a_.down, s.dense_rstd});

  // 10b. router = RMSNorm(x_mid) Wr^T + LoRA;  each token's experts and their weights
  ExpertActivations& e = a_.experts;
  Run(ops::RmsNorm{a_.x_mid, w.router_norm, epsilon, shared_.norm, s.router_rstd});
  const LinearOutput logits{e.router, a_.u.side_router[0]};
  ForwardGroup(context_, LinearGroup::kSideRouter, shared_.norm, {&logits, 1}, Store::kSet);
  Run(ops::RouteExperts{e.router, true, e.routing, e.pair_weights});
  // The host waits, as for experts in the place of the MLP (experts.cc).
  context_.backend().memory().Download(e.routing.begin.data, e.begin.data(),
                                       e.begin.size() * sizeof(std::int32_t));
  const MatrixView pairs = Reshape(a_.scratch.side.pairs, 1);
  Run(ops::GatherRows{w.expert_scale, e.routing.experts, Reshape(s.pair_scales, 1)});
  Run(ops::ScaleRows{Reshape(e.pair_weights, 1), Reshape(s.pair_scales, pairs.rows), pairs});
  Run(ops::GatherRows{pairs, e.routing.pairs, Reshape(e.slot_weights, 1)});

  // 10c. slot = RMSNorm(x_mid) of each slot's token;  gate, up = slot W^T + LoRA
  GatherSlots();
  context_.Observe(LinearGroup::kSideIn, shared_.norm);
  const LoraAdapter* adapter = AdapterOfAll(context_.inputs);
  const std::vector<LinearView> gate_up = BindGroup(context_, LinearGroup::kSideIn, adapter);
  const LinearOutput gate_up_out{s.gate_up, a_.u.side_in[0]};
  Run(ops::ExpertLinear{gate_up, e.begin, shared_.experts.slot, {&gate_up_out, 1}});
  // 10d. act = weight * act(gate) * up
  ActivateSide();
  Run(ops::ScaleRows{a_.scratch.side.act, e.slot_weights, a_.scratch.side.act});
  // 10e. sum = the sum over a token's slots of act Wd^T + LoRA;  down = down + RMSNorm(sum)
  context_.Observe(LinearGroup::kSideOut, a_.scratch.side.act);
  const std::vector<LinearView> down = BindGroup(context_, LinearGroup::kSideOut, adapter);
  const LinearOutput down_out{shared_.experts.slot, a_.u.side_out[0]};
  Run(ops::ExpertLinear{down, e.begin, a_.scratch.side.act, {&down_out, 1}});
  Run(ops::Zero{s.sum});
  Run(ops::ScatterAddRows{shared_.experts.slot, e.routing.tokens, s.sum});
  Run(ops::RmsNorm{s.sum, w.sum_norm, config_.rms_norm_eps, shared_.norm, s.sum_rstd});
  Run(ops::Add{shared_.norm, a_.down});
  // 10f. norm = RMSNorm(down), which joins the stream
  Run(ops::RmsNorm{a_.down, w_.post_mlp_norm, config_.rms_norm_eps, shared_.norm, a_.down_rstd});
}

void Layer::AddSide(const MatrixView& x_mlp) {
  ForwardSide();
  CopyResidual(a_.x_mid, x_mlp);
  Run(ops::Add{shared_.norm, x_mlp});
}

void Layer::GatherSlots() {
  Run(ops::RmsNorm{a_.x_mid, w_.side.norm, config_.stream_eps(), shared_.norm, a_.side.rstd});
  Run(ops::GatherRows{shared_.norm, a_.experts.routing.tokens, shared_.experts.slot});
}

void Layer::ActivateSide() {
  Run(ops::GatedActivation{config_.hidden_act, GateOf(a_.side.gate_up), UpOf(a_.side.gate_up),
                           a_.scratch.side.act});
}

void Layer::BackwardSide(LoraAdapter& trained) {
  const SideActivations& s = a_.side;
  const SideScratch& scratch = a_.scratch.side;
  const SideWeights& w = w_.side;
  // 10f, and the norms of 10e and 10a
  Run(ops::RmsNormBackward{shared_.dx, a_.down, w_.post_mlp_norm, a_.down_rstd, shared_.d_norm,
                           Store::kSet});
  Run(ops::RmsNormBackward{shared_.d_norm, s.sum, w.sum_norm, s.sum_rstd, scratch.d_sum,
                           Store::kSet});
  Run(ops::RmsNormBackward{shared_.d_norm, s.dense, w.dense_norm, s.dense_rstd, scratch.d_dense,
                           Store::kSet});
  // 10a. The rest of the MLP's steps follows in BackwardDenseMlp.
  Activate();
  const ConstMatrixView d_dense = scratch.d_dense;
  BackwardGroup(context_, LinearGroup::kDown, a_.scratch.act, {&d_dense, 1}, a_.u.down,
                a_.scratch.d_act, trained);
  BackwardGates(trained);
  BackwardSideExperts(trained);
  BackwardSideRouter(trained);
}

void Layer::BackwardSideExperts(LoraAdapter& trained) {
  const PerLinear<LoraLinear>& loras = trained.layers()[context_.layer];
  const SideActivations& s = a_.side;
  const SideScratch& scratch = a_.scratch.side;
  const ExpertActivations& e = a_.experts;
  const ExpertBuffers& shared = shared_.experts;
  // 10e
  Run(ops::GatherRows{scratch.d_sum, e.routing.tokens, shared.d_slot});
  ActivateSide();
  Run(ops::ScaleRows{scratch.act, e.slot_weights, scratch.act});
  const std::vector<LinearView> down = BindGroup(context_, LinearGroup::kSideOut, &trained);
  const ConstMatrixView d_down = shared.d_slot;
  const std::vector<LinearGradient> of_down =
      ExpertGradients(loras.side_out, {&d_down, 1}, a_.u.side_out);
  Run(ops::ExpertLinearBackward{down, e.begin, scratch.act, of_down, scratch.d_act});
  // 10d. The gradients replace gate and up.
  ActivateSide();
  Run(ops::RowDots{scratch.d_act, scratch.act, shared.d_slot_weights});
  Run(ops::ScaleRows{scratch.d_act, e.slot_weights, scratch.d_act});
  const MatrixView gate = GateOf(s.gate_up);
  const MatrixView up = UpOf(s.gate_up);
  Run(ops::GatedActivationBackward{config_.hidden_act, scratch.d_act, gate, up, gate, up});
  // 10c. slot is computed again from x_mid.
  GatherSlots();
  const std::vector<LinearView> gate_up = BindGroup(context_, LinearGroup::kSideIn, &trained);
  const ConstMatrixView d_gate_up = s.gate_up;
  const std::vector<LinearGradient> of_gate_up =
      ExpertGradients(loras.side_in, {&d_gate_up, 1}, a_.u.side_in);
  Run(ops::ExpertLinearBackward{gate_up, e.begin, shared.slot, of_gate_up, shared.d_slot});
  Run(ops::Zero{shared_.d_norm});
  Run(ops::ScatterAddRows{shared.d_slot, e.routing.tokens, shared_.d_norm});
  Run(ops::RmsNormBackward{shared_.d_norm, a_.x_mid, w_.side.norm, s.rstd, shared_.dx,
                           Store::kAdd});
}

void Layer::BackwardSideRouter(LoraAdapter& trained) {
  const SideActivations& s = a_.side;
  const ExpertActivations& e = a_.experts;
  const ExpertBuffers& shared = shared_.experts;
  const SideWeights& w = w_.side;
  // 10b
  const MatrixView d_pairs = Reshape(shared.d_pair_weights, 1);
  Run(ops::GatherRows{Reshape(shared.d_slot_weights, 1), e.routing.slots, d_pairs});
  Run(ops::ScaleRows{d_pairs, Reshape(s.pair_scales, d_pairs.rows), d_pairs});
  Run(ops::RouteExpertsBackward{shared.d_pair_weights, e.routing.experts, e.pair_weights, true,
                                e.router});
  Run(ops::RmsNorm{a_.x_mid, w.router_norm, config_.stream_eps(), shared_.norm, s.router_rstd});
  const ConstMatrixView d_router = e.router;
  BackwardGroup(context_, LinearGroup::kSideRouter, shared_.norm, {&d_router, 1}, a_.u.side_router,
                shared_.d_norm, trained);
  Run(ops::RmsNormBackward{shared_.d_norm, a_.x_mid, w.router_norm, s.router_rstd, shared_.dx,
                           Store::kAdd});
}

}  // namespace qlora
