#include "pass/blocks/expert_mlp.h"

#include <utility>
#include <vector>

#include "base/matrix.h"
#include "pass/linear_group.h"

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
DownLinears BindDown(std::vector<LinearView> linears) {
  DownLinears down{std::move(linears), {}};
  for (LinearView& linear : down.linears) {
    if (linear.bias.empty()) continue;
    const ConstMatrixView bias = std::exchange(linear.bias, {});
    down.biases.push_back({ConstMatrixView{bias.data, bias.dtype, bias.cols, 1, 1}, {}, {}});
  }
  return down;
}

}  // namespace

void ExpertMlp::Layout(LayerCarver& c, Activations& a) {
  const std::int64_t slots = c.rows * c.config.moe.num_experts_per_tok;
  a.gate = c.Act(slots, c.sizes.intermediate_size);
  a.up = c.Act(slots, c.sizes.intermediate_size);
  a.slots = LayoutSlots(c, c.config.moe);
  a.shared = SharedExpert::Layout(c);
}

void ExpertMlp::LayoutScratch(LayerCarver& c, Activations& a) {
  Scratch& s = a.scratch;
  const std::int64_t slots = c.rows * c.config.moe.num_experts_per_tok;
  s.act = c.Act(slots, c.sizes.intermediate_size);
  if (c.training) s.d_act = c.LastInputGradient(slots, c.sizes.intermediate_size);
}

ExpertMlp::ExpertMlp(const LayerContext& context, Activations& a)
    : context_(context),
      moe_(context.config().moe),
      w_(context.weights()),
      a_(a),
      s_(a.scratch),
      b_(context.buffers.experts) {
  if (!w_.linears.shared_in.empty()) shared_.emplace(context, a.shared, b_.shared);
}

void ExpertMlp::Recompute(const BlockInput&) {
  ExpertSlots& e = a_.slots;
  const MatrixView& norm = context_.buffers.norm;
  const std::vector<LinearView> gate_up = BindExperts(context_, LinearGroup::kGateUp);
  context_.Observe(LinearGroup::kGateUp, norm);

  // 8a. router = norm Wr^T [+ br];  each token's experts and their weights
  const LinearView router = Router(w_);
  const LinearOutput logits{e.router, {}};
  const SumOrder order = context_.inputs.order;
  context_.Run(ops::Linear{{&router, 1}, norm, {&logits, 1}, Store::kSet, order});
  context_.Run(ops::RouteExperts{e.router, moe_.norm_topk_prob, e.routing, e.pair_weights,
                                 moe_.score, w_.expert_bias, moe_.routed_scaling_factor});
  FetchBegin(context_, e);
  context_.Run(
      ops::GatherRows{Reshape(e.pair_weights, 1), e.routing.pairs, Reshape(e.slot_weights, 1)});

  // 8b. slot = norm of each slot's token;  gate, up = slot W^T [+ b] + LoRA
  const std::vector<MatrixView>& u = context_.u().gate_up;
  const LinearOutput outputs[] = {OutputOfExperts(a_.gate, u[0], gate_up, 2, 0),
                                  OutputOfExperts(a_.up, u[1], gate_up, 2, 1)};
  context_.Run(ops::GatherRows{norm, e.routing.tokens, b_.slot});
  context_.Run(ops::ExpertLinear{gate_up, e.begin, b_.slot, outputs, order});
  // 8c
  if (shared_) shared_->Project();
}

void ExpertMlp::Forward(const BlockInput& in, const MatrixView& x_out) {
  // 8
  Recompute(in);
  const ExpertSlots& e = a_.slots;

  // 9. act = weight * act(gate) * up.  The weight comes before the linear that follows; its
  // gradient is then a dot product with act.
  Activate();
  context_.Run(ops::ScaleRows{s_.act, e.slot_weights, s_.act});

  // 10. x_out = x + the sum over a token's slots of act Wd^T [+ weight * bd]
  CopyResidual(context_, in.x(), x_out);
  const DownLinears down = BindDown(BindExperts(context_, LinearGroup::kDown));
  context_.Observe(LinearGroup::kDown, s_.act);
  const LinearOutput down_out[] = {
      OutputOfExperts(b_.slot, context_.u().down[0], down.linears, 1, 0)};
  const SumOrder order = context_.inputs.order;
  context_.Run(ops::ExpertLinear{down.linears, e.begin, s_.act, down_out, order});
  context_.Run(ops::ScatterAddRows{b_.slot, e.routing.tokens, x_out});
  if (!down.biases.empty()) {
    const LinearOutput bias_out[] = {{b_.slot, {}}};
    context_.Run(
        ops::ExpertLinear{down.biases, e.begin, Reshape(e.slot_weights, 1), bias_out, order});
    context_.Run(ops::ScatterAddRows{b_.slot, e.routing.tokens, x_out});
  }
  // 11
  if (shared_) shared_->Forward(x_out);
}

void ExpertMlp::Backward(const BlockInput& in, LoraAdapter& trained) {
  DownBackward(trained);
  // The norm is computed again from x. The shared expert sets d_norm, to which the others add.
  in.Norm();
  if (shared_) shared_->Backward(trained);
  RouterBackward();
  GatesBackward(trained);
  in.NormBackward();
}

void ExpertMlp::DownBackward(LoraAdapter& trained) {
  const ExpertSlots& e = a_.slots;
  // forward 10: x_out = x + the sum over a token's slots of act Wd^T [+ weight * bd]
  context_.Run(ops::GatherRows{context_.buffers.dx, e.routing.tokens, b_.d_slot});
  Activate();
  context_.Run(ops::ScaleRows{s_.act, e.slot_weights, s_.act});
  const DownLinears down = BindDown(BindGroup(context_, LinearGroup::kDown, &trained));
  const ConstMatrixView d_down[] = {b_.d_slot};
  const std::vector<LinearGradient> of_down =
      ExpertGradients(trained.layers()[context_.layer].down, d_down, context_.u().down);
  context_.Run(ops::ExpertLinearBackward{down.linears, e.begin, s_.act, of_down, s_.d_act});

  // forward 9: act = weight * act(gate) * up.  The gradients replace gate and up.
  Activate();
  context_.Run(ops::RowDots{s_.d_act, s_.act, b_.d_slot_weights});
  if (!down.biases.empty()) {
    const std::vector<LinearGradient> of_biases(down.biases.size(), {b_.d_slot, {}, {}, {}});
    context_.Run(ops::ExpertLinearBackward{down.biases, e.begin, Reshape(e.slot_weights, 1),
                                           of_biases, Reshape(b_.d_bias_weights, 1)});
    context_.Run(ops::Add{b_.d_bias_weights, b_.d_slot_weights});
  }
  context_.Run(ops::ScaleRows{s_.d_act, e.slot_weights, s_.d_act});
  context_.Run(ops::GatedActivationBackward{context_.config().hidden_act, s_.d_act, a_.gate, a_.up,
                                            a_.gate, a_.up});
}

void ExpertMlp::RouterBackward() {
  const ExpertSlots& e = a_.slots;
  // forward 8a: router = norm Wr^T [+ br]
  context_.Run(ops::GatherRows{Reshape(b_.d_slot_weights, 1), e.routing.slots,
                               Reshape(b_.d_pair_weights, 1)});
  context_.Run(ops::RouteExpertsBackward{b_.d_pair_weights, e.routing.experts, e.pair_weights,
                                         moe_.norm_topk_prob, e.router, moe_.score,
                                         moe_.routed_scaling_factor});
  const LinearView router = Router(w_);
  const LinearGradient d_router{e.router, {}, {}, {}};
  context_.Run(ops::LinearBackward{{&router, 1},
                                   context_.buffers.norm,
                                   {&d_router, 1},
                                   context_.buffers.d_norm,
                                   shared_ ? Store::kAdd : Store::kSet});
}

void ExpertMlp::GatesBackward(LoraAdapter& trained) {
  const ExpertSlots& e = a_.slots;
  // forward 8b: slot = norm of each slot's token;  gate, up = slot W^T
  context_.Run(ops::GatherRows{context_.buffers.norm, e.routing.tokens, b_.slot});
  const std::vector<LinearView> gate_up = BindGroup(context_, LinearGroup::kGateUp, &trained);
  const ConstMatrixView d_gate_up[] = {a_.gate, a_.up};
  const std::vector<LinearGradient> of_gate_up =
      ExpertGradients(trained.layers()[context_.layer].gate_up, d_gate_up, context_.u().gate_up);
  context_.Run(ops::ExpertLinearBackward{gate_up, e.begin, b_.slot, of_gate_up, b_.d_slot});
  context_.Run(ops::ScatterAddRows{b_.d_slot, e.routing.tokens, context_.buffers.d_norm});
}

void ExpertMlp::Activate() {
  context_.Run(ops::GatedActivation{context_.config().hidden_act, a_.gate, a_.up, s_.act});
}

}  // namespace qlora
