// The mixture of experts that Qwen3-MoE and Mixtral have in place of the MLP. The numbers continue
// those of forward.cc: steps 8 to 10 become 8a to 10c.
#include <numeric>

#include "model/decoder.h"
#include "model/pass.h"

namespace qlora {
namespace {

// Orders the pairs by expert.
void FillSlots(std::int64_t num_experts, std::int64_t per_token, Routing& routing) {
  const std::size_t pairs = routing.experts.size();
  routing.begin.assign(num_experts + 1, 0);
  for (const std::int32_t expert : routing.experts) {
    ++routing.begin[static_cast<std::size_t>(expert) + 1];
  }
  std::partial_sum(routing.begin.begin(), routing.begin.end(), routing.begin.begin());
  std::vector<std::int64_t> next = routing.begin;
  routing.pairs.resize(pairs);
  routing.tokens.resize(pairs);
  routing.slots.resize(pairs);
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    const auto slot = static_cast<std::size_t>(next[routing.experts[pair]]++);
    routing.pairs[slot] = static_cast<std::int32_t>(pair);
    routing.tokens[slot] = static_cast<std::int32_t>(static_cast<std::int64_t>(pair) / per_token);
    routing.slots[pair] = static_cast<std::int32_t>(slot);
  }
}

// The slots of one expert.
struct Range {
  std::int64_t begin = 0;
  std::int64_t count = 0;

  MatrixView Of(const MatrixView& m) const { return Rows(m, begin, count); }
  // Columns of a (S, R) matrix that adapters of different ranks share.
  MatrixView Of(const MatrixView& u, const LoraLinear* lora) const {
    if (lora == nullptr || lora->rank == 0) return {};
    MatrixView out = Rows(u, begin, count);
    out.cols = lora->rank;
    return out;
  }
  std::span<const std::int32_t> Of(const std::vector<std::int32_t>& values) const {
    return std::span(values).subspan(begin, count);
  }
};

// fn(expert, range) for every expert that has slots.
template <typename Fn>
void ForEachExpert(const Routing& routing, const Fn& fn) {
  for (std::size_t e = 0; e + 1 < routing.begin.size(); ++e) {
    const Range range{routing.begin[e], routing.begin[e + 1] - routing.begin[e]};
    if (range.count > 0) fn(e, range);
  }
}

}  // namespace

void Decoder::ForwardExperts(std::int64_t layer, const Pass& pass, LayerActivations& a,
                             MatrixView x_out, Activations& shared) const {
  const auto l = static_cast<std::size_t>(layer);
  const LayerWeights& w = weights_.layers[l];
  const PerLinear<LoraLinear*>& loras = loras_[l];
  const std::vector<LinearView> gate_up = BindGroup(LinearGroup::kGateUp, pass, layer);
  if (observer_) observer_(layer, LinearGroup::kGateUp, shared.norm);

  // 8a. router = norm Wr^T;  each token's experts and their weights
  const LinearView router{{w.router, {}}, {}, {}};
  const LinearOutput logits{a.router, {}};
  backend_.Linear({&router, 1}, shared.norm, {&logits, 1}, Store::kSet);
  Routing& routing = a.routing;
  routing.experts.resize(a.pair_weights.rows * a.pair_weights.cols);
  backend_.SelectExperts(a.router, config_.moe.norm_topk_prob, routing.experts, a.pair_weights);
  FillSlots(config_.moe.num_experts, config_.moe.num_experts_per_tok, routing);
  backend_.GatherRows(Reshape(a.pair_weights, 1), routing.pairs, Reshape(a.slot_weights, 1));

  // 8b. slot = norm of each slot's token;  gate, up = slot W^T + LoRA
  backend_.GatherRows(shared.norm, routing.tokens, shared.slot);
  ForEachExpert(routing, [&](std::size_t e, const Range& range) {
    const LinearOutput out[] = {
        {range.Of(a.gate), range.Of(a.u.gate_up[0], loras.gate_up[2 * e])},
        {range.Of(a.up), range.Of(a.u.gate_up[1], loras.gate_up[2 * e + 1])}};
    backend_.Linear(std::span(gate_up).subspan(2 * e, 2), range.Of(shared.slot), out, Store::kSet);
  });
  if (x_out.empty()) return;

  // 9. act = weight * act(gate) * up.  The linear that follows has no bias, so that the weight may
  // come before it; its gradient is then a dot product with act.
  backend_.GatedActivation(config_.hidden_act, a.gate, a.up, shared.act);
  backend_.ScaleRows(shared.act, a.slot_weights, shared.act);

  // 10. x_out = x_mid + the sum over a token's slots of act Wd^T
  if (x_out.data != a.x_mid.data) backend_.GatherRows(a.x_mid, pass.iota, x_out);
  const std::vector<LinearView> down = BindGroup(LinearGroup::kDown, pass, layer);
  if (observer_) observer_(layer, LinearGroup::kDown, shared.act);
  ForEachExpert(routing, [&](std::size_t e, const Range& range) {
    const LinearOutput out{range.Of(shared.slot), range.Of(a.u.down[0], loras.down[e])};
    backend_.Linear({&down[e], 1}, range.Of(shared.act), {&out, 1}, Store::kSet);
    backend_.ScatterAddRows(range.Of(shared.slot), range.Of(routing.tokens), x_out);
  });
}

void Decoder::BackwardExperts(std::int64_t layer, const Pass& pass, LayerActivations& a,
                              Activations& shared) const {
  const auto l = static_cast<std::size_t>(layer);
  const LayerWeights& w = weights_.layers[l];
  const PerLinear<LoraLinear*>& loras = loras_[l];
  const Routing& routing = a.routing;

  // forward 10: x_out = x_mid + the sum over a token's slots of act Wd^T
  backend_.GatherRows(shared.dx, routing.tokens, shared.d_slot);
  backend_.GatedActivation(config_.hidden_act, a.gate, a.up, shared.act);
  backend_.ScaleRows(shared.act, a.slot_weights, shared.act);
  const std::vector<LinearView> down = BindGroup(LinearGroup::kDown, pass, layer);
  ForEachExpert(routing, [&](std::size_t e, const Range& range) {
    const LoraLinear* lora = loras.down[e];
    const LinearGradient gradient =
        GradientOf(range.Of(shared.d_slot), range.Of(a.u.down[0], lora), lora);
    backend_.LinearBackward({&down[e], 1}, range.Of(shared.act), {&gradient, 1},
                            range.Of(shared.d_act), Store::kSet);
  });

  // forward 9: act = weight * act(gate) * up.  The gradients replace gate and up.
  backend_.GatedActivation(config_.hidden_act, a.gate, a.up, shared.act);
  backend_.RowDots(shared.d_act, shared.act, shared.d_slot_weights);
  backend_.ScaleRows(shared.d_act, a.slot_weights, shared.d_act);
  backend_.GatedActivationBackward(config_.hidden_act, shared.d_act, a.gate, a.up, a.gate, a.up);

  // forward 8a: router = norm Wr^T.  norm is computed again from x_mid.
  backend_.RmsNorm(a.x_mid, w.mlp_norm, config_.rms_norm_eps, shared.norm, a.mlp_rstd);
  backend_.GatherRows(Reshape(shared.d_slot_weights, 1), routing.slots,
                      Reshape(shared.d_pair_weights, 1));
  backend_.SelectExpertsBackward(shared.d_pair_weights, routing.experts, a.pair_weights,
                                 config_.moe.norm_topk_prob, a.router);
  const LinearView router{{w.router, {}}, {}, {}};
  const LinearGradient d_router{a.router, {}, {}, {}};
  backend_.LinearBackward({&router, 1}, shared.norm, {&d_router, 1}, shared.d_norm, Store::kSet);

  // forward 8b: slot = norm of each slot's token;  gate, up = slot W^T
  backend_.GatherRows(shared.norm, routing.tokens, shared.slot);
  const std::vector<LinearView> gate_up = BindGroup(LinearGroup::kGateUp, pass, layer);
  ForEachExpert(routing, [&](std::size_t e, const Range& range) {
    const LoraLinear* gate = loras.gate_up[2 * e];
    const LoraLinear* up = loras.gate_up[2 * e + 1];
    const LinearGradient gradients[] = {
        GradientOf(range.Of(a.gate), range.Of(a.u.gate_up[0], gate), gate),
        GradientOf(range.Of(a.up), range.Of(a.u.gate_up[1], up), up)};
    backend_.LinearBackward(std::span(gate_up).subspan(2 * e, 2), range.Of(shared.slot), gradients,
                            range.Of(shared.d_slot), Store::kSet);
    backend_.ScatterAddRows(range.Of(shared.d_slot), range.Of(routing.tokens), shared.d_norm);
  });

  // forward 7: norm = RMSNorm(x_mid)
  backend_.RmsNormBackward(shared.d_norm, a.x_mid, w.mlp_norm, a.mlp_rstd, shared.dx, Store::kAdd);
}

}  // namespace qlora
