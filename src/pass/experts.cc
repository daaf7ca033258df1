// The mixture of experts that Qwen3-MoE, Mixtral and gpt-oss have in place of the MLP. The numbers
// continue the numbers of layer.cc: steps 8 to 10 become 8a to 10. An expert of all tokens is in
// shared_expert.cc.
//
// A pair is a token and one of its k experts. Pairs are put in the order of their experts, so that
// every expert multiplies a range of rows ("slots"):
//   tokens   0  1  2          pairs (token:expert)   0:2 0:0  1:0 1:1  2:2 2:1
//   slots    0:0 1:0 | 1:1 2:1 | 0:2 2:2             begin   0 2 4 6
#include "pass/experts.h"

#include <utility>
#include <vector>

#include "pass/layer.h"

namespace qlora {
namespace {

LinearView Router(const LayerWeights& weights) { return {weights.router, weights.router_bias, {}}; }

// The down linears of all experts, and apart from them their biases.
struct DownLinears {
  std::vector<LinearView> linears;
  // The weight of a slot comes before its linear, and multiplies the bias as well: weight * bias is
  // a linear (D, 1) of the weight. Empty without biases.
  std::vector<LinearView> biases;
};
DownLinears BindDown(const LayerContext& context, const LoraAdapter* adapter) {
  DownLinears down{BindGroup(context, LinearGroup::kDown, adapter), {}};
  for (LinearView& linear : down.linears) {
    if (linear.bias.empty()) continue;
    const ConstMatrixView bias = std::exchange(linear.bias, {});
    down.biases.push_back({ConstMatrixView{bias.data, bias.dtype, bias.cols, 1, 1}, {}, {}});
  }
  return down;
}

}  // namespace

ExpertActivations LayoutExperts(Carver& carver, const DecoderConfig& config,
                                const Precision& precision, std::int64_t rows) {
  ExpertActivations out;
  const MoeConfig& moe = config.experts();
  const std::int64_t experts = moe.num_experts;
  const std::int64_t slots = rows * moe.num_experts_per_tok;
  const auto indices = [&](std::int64_t count) {
    const MatrixView m = carver.Matrix(DType::kI32, 1, count);
    return IndexSpan{static_cast<std::int32_t*>(m.data), count};
  };
  out.router = carver.Matrix(precision.wide, rows, experts);
  out.pair_weights = carver.Matrix(precision.wide, rows, moe.num_experts_per_tok);
  out.slot_weights = carver.Matrix(precision.wide, 1, slots);
  out.routing = {indices(slots), indices(slots), indices(slots), indices(slots),
                 indices(experts + 1)};
  out.begin.resize(experts + 1);
  out.shared = LayoutSharedExpert(carver, config, precision, rows);
  return out;
}

ExpertBuffers LayoutExpertBuffers(Carver& carver, const DecoderConfig& config,
                                  const Precision& precision, std::int64_t rows, bool training) {
  ExpertBuffers out;
  const MoeConfig& moe = config.experts();
  if (moe.num_experts == 0) return out;
  const std::int64_t slots = rows * moe.num_experts_per_tok;
  out.slot = carver.Matrix(precision.activation, slots, config.hidden_size);
  out.shared = LayoutSharedExpertBuffers(carver, config, precision, rows, training);
  if (!training) return out;
  out.d_slot = carver.Matrix(precision.activation, slots, config.hidden_size);
  out.d_slot_weights = carver.Matrix(precision.wide, 1, slots);
  out.d_pair_weights = carver.Matrix(precision.wide, rows, moe.num_experts_per_tok);
  if (config.mlp_bias) out.d_bias_weights = carver.Matrix(precision.wide, 1, slots);
  return out;
}

void Layer::ProjectExperts() {
  ExpertActivations& e = a_.experts;
  const ExpertBuffers& s = shared_.experts;
  const std::vector<LinearView> gate_up =
      BindGroup(context_, LinearGroup::kGateUp, AdapterOfAll(context_.inputs));
  context_.Observe(LinearGroup::kGateUp, shared_.norm);

  // 8a. router = norm Wr^T [+ br];  each token's experts and their weights
  const LinearView router = Router(w_);
  const LinearOutput logits{e.router, {}};
  Run(ops::Linear{{&router, 1}, shared_.norm, {&logits, 1}});
  const MoeConfig& moe = config_.moe;
  Run(ops::RouteExperts{e.router, moe.norm_topk_prob, e.routing, e.pair_weights, moe.score,
                        w_.expert_bias, moe.routed_scaling_factor});
  // The rows of an expert are the shape of its products, which the host gives: it waits for the
  // routing once in each forward pass of a layer, instead of padding every expert to the most rows
  // that it could have.
  context_.backend().memory().Download(e.routing.begin.data, e.begin.data(),
                                       e.begin.size() * sizeof(std::int32_t));
  Run(ops::GatherRows{Reshape(e.pair_weights, 1), e.routing.pairs, Reshape(e.slot_weights, 1)});

  // 8b. slot = norm of each slot's token;  gate, up = slot W^T [+ b] + LoRA
  Run(ops::GatherRows{shared_.norm, e.routing.tokens, s.slot});
  Run(ops::ExpertLinear{gate_up, e.begin, s.slot, gate_up_});
  ProjectSharedExpert();
}

void Layer::ForwardExperts(const MatrixView& x_out) {
  ProjectExperts();
  const ExpertActivations& e = a_.experts;
  const ExpertBuffers& s = shared_.experts;

  // 9. act = weight * act(gate) * up.  The weight comes before the linear that follows; its
  // gradient is then a dot product with act.
  Run(ops::GatedActivation{config_.hidden_act, a_.gate, a_.up, a_.scratch.act});
  Run(ops::ScaleRows{a_.scratch.act, e.slot_weights, a_.scratch.act});

  // 10. x_out = x_mid + the sum over a token's slots of act Wd^T [+ weight * bd]
  CopyResidual(a_.x_mid, x_out);
  const DownLinears down = BindDown(context_, AdapterOfAll(context_.inputs));
  context_.Observe(LinearGroup::kDown, a_.scratch.act);
  const LinearOutput down_out[] = {{s.slot, a_.u.down[0]}};
  Run(ops::ExpertLinear{down.linears, e.begin, a_.scratch.act, down_out});
  Run(ops::ScatterAddRows{s.slot, e.routing.tokens, x_out});
  if (!down.biases.empty()) {
    const LinearOutput bias_out[] = {{s.slot, {}}};
    Run(ops::ExpertLinear{down.biases, e.begin, Reshape(e.slot_weights, 1), bias_out});
    Run(ops::ScatterAddRows{s.slot, e.routing.tokens, x_out});
  }
  ForwardSharedExpert(x_out);
}

void Layer::BackwardExperts(LoraAdapter& trained) {
  ExpertActivations& e = a_.experts;
  const ExpertBuffers& s = shared_.experts;
  const RoutingView& routing = e.routing;
  const PerLinear<LoraLinear>& loras = trained.layers()[context_.layer];

  // forward 10: x_out = x_mid + the sum over a token's slots of act Wd^T [+ weight * bd]
  Run(ops::GatherRows{shared_.dx, routing.tokens, s.d_slot});
  Run(ops::GatedActivation{config_.hidden_act, a_.gate, a_.up, a_.scratch.act});
  Run(ops::ScaleRows{a_.scratch.act, e.slot_weights, a_.scratch.act});
  const DownLinears down = BindDown(context_, &trained);
  const ConstMatrixView d_down[] = {s.d_slot};
  const std::vector<LinearGradient> of_down = ExpertGradients(loras.down, d_down, a_.u.down);
  Run(ops::ExpertLinearBackward{down.linears, e.begin, a_.scratch.act, of_down, a_.scratch.d_act});

  // forward 9: act = weight * act(gate) * up.  The gradients replace gate and up.
  Run(ops::GatedActivation{config_.hidden_act, a_.gate, a_.up, a_.scratch.act});
  Run(ops::RowDots{a_.scratch.d_act, a_.scratch.act, s.d_slot_weights});
  if (!down.biases.empty()) {
    const std::vector<LinearGradient> of_biases(down.biases.size(), {s.d_slot, {}, {}, {}});
    Run(ops::ExpertLinearBackward{down.biases, e.begin, Reshape(e.slot_weights, 1), of_biases,
                                  Reshape(s.d_bias_weights, 1)});
    Run(ops::Add{s.d_bias_weights, s.d_slot_weights});
  }
  Run(ops::ScaleRows{a_.scratch.d_act, e.slot_weights, a_.scratch.d_act});
  Run(ops::GatedActivationBackward{config_.hidden_act, a_.scratch.d_act, a_.gate, a_.up, a_.gate,
                                   a_.up});

  // forward 8a: router = norm Wr^T [+ br].  norm is computed again from x_mid.
  Norm(a_.x_mid, w_.mlp_norm, a_.mlp_rstd);
  if (has_shared_expert()) SharedExpertBackward(trained);
  const MoeConfig& moe = config_.moe;
  Run(ops::GatherRows{Reshape(s.d_slot_weights, 1), routing.slots, Reshape(s.d_pair_weights, 1)});
  Run(ops::RouteExpertsBackward{s.d_pair_weights, routing.experts, e.pair_weights,
                                moe.norm_topk_prob, e.router, moe.score,
                                moe.routed_scaling_factor});
  const LinearView router = Router(w_);
  const LinearGradient d_router{e.router, {}, {}, {}};
  Run(ops::LinearBackward{{&router, 1},
                          shared_.norm,
                          {&d_router, 1},
                          shared_.d_norm,
                          has_shared_expert() ? Store::kAdd : Store::kSet});

  // forward 8b: slot = norm of each slot's token;  gate, up = slot W^T
  Run(ops::GatherRows{shared_.norm, routing.tokens, s.slot});
  const std::vector<LinearView> gate_up = BindGroup(context_, LinearGroup::kGateUp, &trained);
  const std::vector<LinearGradient> of_gate_up =
      ExpertGradients(loras.gate_up, d_gate_up_, a_.u.gate_up);
  Run(ops::ExpertLinearBackward{gate_up, e.begin, s.slot, of_gate_up, s.d_slot});
  Run(ops::ScatterAddRows{s.d_slot, routing.tokens, shared_.d_norm});

  // forward 7: norm = RMSNorm(x_mid)
  NormBackward(a_.x_mid, w_.mlp_norm, a_.mlp_rstd);
}

}  // namespace qlora
