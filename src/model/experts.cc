// The mixture of experts that Qwen3-MoE and Mixtral have in place of the MLP. The numbers continue
// those of forward.cc: steps 8 to 10 become 8a to 10c.
//
// A pair is a token and one of its k experts. Pairs are put in the order of their experts, so that
// every expert multiplies a range of rows ("slots"):
//   tokens   0  1  2          pairs (token:expert)   0:2 0:0  1:0 1:1  2:2 2:1
//   slots    0:0 1:0 | 1:1 2:1 | 0:2 2:2             begin   0 2 4 6
#include "model/decoder.h"
#include "model/pass.h"

namespace qlora {

void Decoder::ForwardExperts(std::int64_t layer, const Pass& pass, LayerActivations& a,
                             MatrixView x_out, Activations& shared) const {
  const LayerWeights& w = weights_.layers[layer];
  const std::vector<LinearView> gate_up = BindGroup(LinearGroup::kGateUp, pass, layer);
  if (observer_) observer_(layer, LinearGroup::kGateUp, shared.norm);

  // 8a. router = norm Wr^T;  each token's experts and their weights
  const LinearView router{{w.router, {}}, {}, {}};
  const LinearOutput logits{a.router, {}};
  backend_.Run(ops::Linear{{&router, 1}, shared.norm, {&logits, 1}});
  backend_.Run(ops::RouteExperts{a.router, config_.moe.norm_topk_prob, a.routing, a.pair_weights});
  backend_.Run(
      ops::GatherRows{Reshape(a.pair_weights, 1), a.routing.pairs, Reshape(a.slot_weights, 1)});

  // 8b. slot = norm of each slot's token;  gate, up = slot W^T + LoRA
  backend_.Run(ops::GatherRows{shared.norm, a.routing.tokens, shared.slot});
  const LinearOutput gate_up_out[] = {{a.gate, a.u.gate_up[0]}, {a.up, a.u.gate_up[1]}};
  backend_.Run(ops::ExpertLinear{gate_up, a.routing.begin, shared.slot, gate_up_out});
  if (x_out.empty()) return;

  // 9. act = weight * act(gate) * up.  The linear that follows has no bias, so that the weight may
  // come before it; its gradient is then a dot product with act.
  backend_.Run(ops::GatedActivation{config_.hidden_act, a.gate, a.up, shared.act});
  backend_.Run(ops::ScaleRows{shared.act, a.slot_weights, shared.act});

  // 10. x_out = x_mid + the sum over a token's slots of act Wd^T
  if (x_out.data != a.x_mid.data) backend_.Run(ops::Copy{a.x_mid, x_out});
  const std::vector<LinearView> down = BindGroup(LinearGroup::kDown, pass, layer);
  if (observer_) observer_(layer, LinearGroup::kDown, shared.act);
  const LinearOutput down_out[] = {{shared.slot, a.u.down[0]}};
  backend_.Run(ops::ExpertLinear{down, a.routing.begin, shared.act, down_out});
  backend_.Run(ops::ScatterAddRows{shared.slot, a.routing.tokens, x_out});
}

namespace {

// Gradients of the linears of all experts. dys[i], us[i]: of linear i of every expert, all slots.
std::vector<LinearGradient> ExpertGradients(std::span<LoraLinear* const> loras,
                                            std::span<const ConstMatrixView> dys,
                                            std::span<const MatrixView> us) {
  std::vector<LinearGradient> gradients;
  for (std::size_t i = 0; i < loras.size(); ++i) {
    const std::size_t linear = i % dys.size();
    gradients.push_back(GradientOf(dys[linear], us[linear], loras[i]));
    if (i < dys.size()) gradients.back().u = us[linear];
  }
  return gradients;
}

}  // namespace

void Decoder::BackwardExperts(std::int64_t layer, const Pass& pass, LayerActivations& a,
                              Activations& shared) const {
  const LayerWeights& w = weights_.layers[layer];
  const PerLinear<LoraLinear*>& loras = loras_[layer];
  const RoutingView& routing = a.routing;

  // forward 10: x_out = x_mid + the sum over a token's slots of act Wd^T
  backend_.Run(ops::GatherRows{shared.dx, routing.tokens, shared.d_slot});
  backend_.Run(ops::GatedActivation{config_.hidden_act, a.gate, a.up, shared.act});
  backend_.Run(ops::ScaleRows{shared.act, a.slot_weights, shared.act});
  const std::vector<LinearView> down = BindGroup(LinearGroup::kDown, pass, layer);
  const ConstMatrixView d_down[] = {shared.d_slot};
  const std::vector<LinearGradient> of_down = ExpertGradients(loras.down, d_down, a.u.down);
  backend_.Run(ops::ExpertLinearBackward{down, routing.begin, shared.act, of_down, shared.d_act});

  // forward 9: act = weight * act(gate) * up.  The gradients replace gate and up.
  backend_.Run(ops::GatedActivation{config_.hidden_act, a.gate, a.up, shared.act});
  backend_.Run(ops::RowDots{shared.d_act, shared.act, shared.d_slot_weights});
  backend_.Run(ops::ScaleRows{shared.d_act, a.slot_weights, shared.d_act});
  backend_.Run(
      ops::GatedActivationBackward{config_.hidden_act, shared.d_act, a.gate, a.up, a.gate, a.up});

  // forward 8a: router = norm Wr^T.  norm is computed again from x_mid.
  backend_.Run(ops::RmsNorm{a.x_mid, w.mlp_norm, config_.rms_norm_eps, shared.norm, a.mlp_rstd});
  backend_.Run(ops::GatherRows{Reshape(shared.d_slot_weights, 1), routing.slots,
                               Reshape(shared.d_pair_weights, 1)});
  backend_.Run(ops::RouteExpertsBackward{shared.d_pair_weights, routing.experts, a.pair_weights,
                                         config_.moe.norm_topk_prob, a.router});
  const LinearView router{{w.router, {}}, {}, {}};
  const LinearGradient d_router{a.router, {}, {}, {}};
  backend_.Run(ops::LinearBackward{{&router, 1}, shared.norm, {&d_router, 1}, shared.d_norm});

  // forward 8b: slot = norm of each slot's token;  gate, up = slot W^T
  backend_.Run(ops::GatherRows{shared.norm, routing.tokens, shared.slot});
  const std::vector<LinearView> gate_up = BindGroup(LinearGroup::kGateUp, pass, layer);
  const ConstMatrixView d_gate_up[] = {a.gate, a.up};
  const std::vector<LinearGradient> of_gate_up =
      ExpertGradients(loras.gate_up, d_gate_up, a.u.gate_up);
  backend_.Run(
      ops::ExpertLinearBackward{gate_up, routing.begin, shared.slot, of_gate_up, shared.d_slot});
  backend_.Run(ops::ScatterAddRows{shared.d_slot, routing.tokens, shared.d_norm});

  // forward 7: norm = RMSNorm(x_mid)
  backend_.Run(
      ops::RmsNormBackward{shared.d_norm, a.x_mid, w.mlp_norm, a.mlp_rstd, shared.dx, Store::kAdd});
}

}  // namespace qlora
