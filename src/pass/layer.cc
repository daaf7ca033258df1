// The forward steps are numbered; each backward function has the same steps in reverse. Only
// adapters have weight gradients; the gradient of the residual stream is kept in one buffer,
// shared_.dx, that every step adds to.
#include "pass/layer.h"

#include "pass/sequence_state.h"

namespace qlora {

Layer::Layer(const Decoder& decoder, const PassInputs& inputs, std::int64_t layer,
             SequenceState* state, const InputObserver* observer, Activations& activations)
    : a_(activations.layers[layer]),
      shared_(activations),
      context_{decoder, inputs, layer, observer, activations},
      w_(decoder.weights().layers[layer]),
      config_(decoder.config()),
      sizes_(config_.layer(layer)),
      shape_{sizes_.num_attention_heads, sizes_.num_key_value_heads, sizes_.head_dim,
             config_.attention_scale,    config_.attention_softcap,  sizes_.window},
      o_{LinearGroup::kO, a_.o, w_.post_attn_norm, a_.o_rstd, a_.u.o},
      down_{LinearGroup::kDown, a_.down, w_.post_mlp_norm, a_.down_rstd, a_.u.down[0]} {
  if (state != nullptr) {
    window_ = state->layers[layer].window;
    delta_ = state->layers[layer].delta;
    begins_ = state->length == 0;
  }
  switch (sizes_.mixer) {
    case Mixer::kAttention:
      BindAttention(state);
      break;
    case Mixer::kDeltaRule:
      BindDeltaRule();
      break;
    case Mixer::kShortConv:
      BindShortConv();
      break;
  }
  if (config_.fused_gate_up) {
    gate_up_ = {{a_.gate_up, a_.u.gate_up[0]}};
    d_gate_up_ = {a_.gate_up};
  } else {
    gate_up_ = {{a_.gate, a_.u.gate_up[0]}, {a_.up, a_.u.gate_up[1]}};
    d_gate_up_ = {a_.gate, a_.up};
  }
  if (has_per_layer()) {
    per_layer_ = {LinearGroup::kPerLayerOut, a_.per_layer.out, w_.per_layer_norm, a_.per_layer.rstd,
                  a_.u.per_layer_out[0]};
  }
}

void Layer::BindAttention(const SequenceState* state) {
  const std::int64_t owner = sizes_.has_own_kv() ? context_.layer : sizes_.kv_layer;
  k_ = all_k_ = shared_.layers[owner].k;
  v_ = all_v_ = shared_.layers[owner].v;
  // With a state, k_ and v_ are its rows behind the rows of earlier passes; attention reads from
  // row 0 on.
  if (state != nullptr) {
    const LayerState& all = state->layers[owner];
    const std::int64_t rows = context_.inputs.rows;
    k_ = Rows(all.k, state->length, rows);
    v_ = Rows(all.v, state->length, rows);
    all_k_ = Rows(all.k, 0, state->length + rows);
    all_v_ = Rows(all.v, 0, state->length + rows);
  }
  const std::int64_t head = sizes_.head_dim;
  mixed_ = a_.attn;
  d_mixed_ = a_.scratch.d_attn;
  MatrixView d_q = a_.scratch.d_q;
  if (config_.output_gate) {
    // The rows of one head: K of query, then K of gate.
    const MatrixView heads = Reshape(a_.q_gate, 2 * head);
    q_heads_ = Columns(heads, 0, head);
    gate_heads_ = Columns(heads, head, head);
    mixed_ = a_.scratch.gated;
    if (!a_.scratch.d_q_gate.empty()) {
      d_q = a_.scratch.d_q_gate;
      d_q_heads_ = Columns(Reshape(d_q, 2 * head), 0, head);
      d_gate_heads_ = Columns(Reshape(d_q, 2 * head), head, head);
    }
  } else if (has_qk_norm()) {
    const std::int64_t size = config_.q_norm_size(context_.layer);
    q_heads_ = Reshape(a_.q_pre, size);
    if (!d_q.empty()) d_q_heads_ = Reshape(d_q, size);
  }
  if (config_.fused_qkv) {
    qkv_ = {{a_.qkv, a_.u.qkv[0]}};
    d_qkv_ = {a_.scratch.d_qkv};
    copies_k_v_ = state != nullptr;
  } else {
    const MatrixView& q = config_.output_gate ? a_.q_gate : has_qk_norm() ? a_.q_pre : a_.q;
    const MatrixView& k = has_qk_norm() ? a_.k_pre : k_;
    const MatrixView& v = config_.value_norm ? a_.v_pre : v_;
    if (!sizes_.has_own_kv()) {
      qkv_ = {{q, a_.u.qkv[0]}};
      d_qkv_ = {d_q};
    } else if (sizes_.k_is_v) {
      qkv_ = {{q, a_.u.qkv[0]}, {k, a_.u.qkv[1]}};
      d_qkv_ = {d_q, a_.scratch.d_k};
    } else {
      qkv_ = {{q, a_.u.qkv[0]}, {k, a_.u.qkv[1]}, {v, a_.u.qkv[2]}};
      d_qkv_ = {d_q, a_.scratch.d_k, a_.scratch.d_v};
    }
  }
}

void Layer::ForwardMixer() {
  if (begins_) {
    if (!window_.empty()) Run(ops::Zero{window_});
    if (!delta_.empty()) Run(ops::Zero{delta_});
  }
  // 1. norm = RMSNorm(x_in)
  Norm(a_.x_in, w_.input_norm, a_.attn_rstd);
  // 2 to 5. mixed = mixer(norm)
  switch (sizes_.mixer) {
    case Mixer::kAttention:
      Attend();
      break;
    case Mixer::kDeltaRule:
      RunDeltaRule();
      break;
    case Mixer::kShortConv:
      RunShortConv();
      break;
  }
  // 6. x_mid = x_in + [RMSNorm](mixed Wo^T)
  AddBranch(o_, mixed_, a_.x_in, a_.x_mid);
}

void Layer::Attend() {
  // 2. q, k, v = norm W^T + b + LoRA
  ProjectQkv();
  // 3. q, k [, v] = RMSNorm of each head
  // 4. q, k = RoPE(q, k)
  NormAndRotate();
  // 5. attn = softmax(q k^T) v [* sigmoid(gate)]
  Run(ops::Attention{shape_, context_.inputs.spans, a_.q, all_k_, all_v_, a_.attn, a_.lse});
  if (config_.sinks) Run(ops::AttentionSinks{w_.sinks, a_.lse, a_.attn});
  GateAttention();
}

void Layer::ForwardMlp(const MatrixView& x_out) {
  // 7. norm = RMSNorm(x_mid)
  Norm(a_.x_mid, w_.mlp_norm, a_.mlp_rstd);
  const MatrixView& x_mlp = has_per_layer() ? a_.per_layer.x : x_out;
  if (config_.has_experts(context_.layer)) {
    ForwardExperts(x_mlp);
  } else {
    // 8. gate, up = norm W^T + b + LoRA
    ForwardGroup(context_, LinearGroup::kGateUp, shared_.norm, gate_up_, Store::kSet);
    // 9. act = act(gate) * up
    Activate();
    // 10. x_mlp = x_mid + [RMSNorm](act Wd^T)
    if (has_side_experts()) {
      AddSide(x_mlp);
    } else {
      AddBranch(down_, a_.scratch.act, a_.x_mid, x_mlp);
    }
  }
  // 11 to 13. x_out = x_mlp + its per-layer embedding
  if (has_per_layer()) ForwardPerLayer(x_out);
  // 14. x_out = scale * x_out
  if (!w_.scale.empty()) Run(ops::ScaleColumns{x_out, w_.scale, {}, x_out});
}

void Layer::RecomputeMlp() {
  // 7
  Norm(a_.x_mid, w_.mlp_norm, a_.mlp_rstd);
  if (config_.has_experts(context_.layer)) return ProjectExperts();
  RecomputeDenseMlp();
}

void Layer::RecomputeDenseMlp() {
  // 8
  ForwardGroup(context_, LinearGroup::kGateUp, shared_.norm, gate_up_, Store::kSet);
  // 9, 10. The normalised values are needed, the residual stream only for a per-layer embedding.
  if (!down_.is_normalized() && !has_per_layer()) return;
  Activate();
  if (!has_per_layer()) {
    return has_side_experts() ? ForwardSide() : NormBranch(down_, a_.scratch.act);
  }
  if (has_side_experts()) {
    AddSide(a_.per_layer.x);
  } else {
    AddBranch(down_, a_.scratch.act, a_.x_mid, a_.per_layer.x);
  }
  // 11 to 13
  RecomputePerLayer();
}

void Layer::BackwardMlp(LoraAdapter& trained) {
  // 14
  if (!w_.scale.empty()) Run(ops::ScaleColumns{shared_.dx, w_.scale, {}, shared_.dx});
  // 13 to 11
  if (has_per_layer()) BackwardPerLayer(trained);
  if (config_.has_experts(context_.layer)) return BackwardExperts(trained);
  BackwardDenseMlp(trained);
}

void Layer::BackwardDenseMlp(LoraAdapter& trained) {
  // 10
  if (has_side_experts()) return BackwardSide(trained);
  Activate();
  BranchBackward(down_, a_.scratch.act, a_.scratch.d_act, trained);
  BackwardGates(trained);
}

void Layer::BackwardGates(LoraAdapter& trained) {
  // 9. The gradients replace gate and up.
  Run(ops::GatedActivationBackward{config_.hidden_act, a_.scratch.d_act, a_.gate, a_.up, a_.gate,
                                   a_.up});
  // 8. norm is computed again from x_mid.
  Norm(a_.x_mid, w_.mlp_norm, a_.mlp_rstd);
  BackwardGroup(context_, LinearGroup::kGateUp, shared_.norm, d_gate_up_, a_.u.gate_up,
                shared_.d_norm, trained);
  // 7
  NormBackward(a_.x_mid, w_.mlp_norm, a_.mlp_rstd);
}

void Layer::BackwardMixer(LoraAdapter& trained, bool wanted) {
  // 6
  Remix();
  BranchBackward(o_, mixed_, d_mixed_, trained);
  // 5 to 3
  switch (sizes_.mixer) {
    case Mixer::kAttention:
      AttendBackward();
      break;
    case Mixer::kDeltaRule:
      DeltaRuleBackward();
      break;
    case Mixer::kShortConv:
      ShortConvBackward();
      break;
  }
  // 2. norm is computed again from x_in.
  Norm(a_.x_in, w_.input_norm, a_.attn_rstd);
  BackwardGroup(context_, LinearGroup::kQkv, shared_.norm, d_qkv_, a_.u.qkv,
                wanted ? shared_.d_norm : MatrixView{}, trained);
  // 1
  if (wanted) NormBackward(a_.x_in, w_.input_norm, a_.attn_rstd);
}

void Layer::Remix() {
  switch (sizes_.mixer) {
    case Mixer::kAttention:
      GateAttention();
      break;
    case Mixer::kDeltaRule:
      RemixDeltaRule();
      break;
    case Mixer::kShortConv:
      RemixShortConv();
      break;
  }
}

void Layer::AttendBackward() {
  // 5
  if (config_.output_gate) {
    const std::int64_t head = sizes_.head_dim;
    const MatrixView d_mixed = Reshape(d_mixed_, head);
    Run(ops::GatedActivationBackward{Activation::kSigmoid, d_mixed, gate_heads_,
                                     Reshape(a_.attn, head), d_gate_heads_, d_mixed});
  }
  Run(ops::AttentionBackward{shape_, context_.inputs.spans, d_mixed_, a_.q, k_, v_, a_.attn, a_.lse,
                             a_.scratch.d_q, a_.scratch.d_k, a_.scratch.d_v});
  // The layer that keys and values are of runs backward behind all that read them.
  if (!sizes_.has_own_kv()) {
    const LayerActivations& owner = shared_.layers[sizes_.kv_layer];
    Run(ops::Add{a_.scratch.d_k, owner.d_k_others});
    Run(ops::Add{a_.scratch.d_v, owner.d_v_others});
  } else if (!a_.d_k_others.empty()) {
    Run(ops::Add{a_.d_k_others, a_.scratch.d_k});
    Run(ops::Add{a_.d_v_others, a_.scratch.d_v});
  }
  // 4, 3
  NormAndRotateBackward();
}

void Layer::Norm(const MatrixView& x, const ConstMatrixView& weight, const MatrixView& rstd) {
  if (weight.empty()) {
    Run(ops::Zero{shared_.norm});
    Run(ops::Add{x, shared_.norm});
  } else {
    Run(ops::RmsNorm{x, weight, config_.stream_eps(), shared_.norm, rstd});
  }
}

void Layer::NormBackward(const MatrixView& x, const ConstMatrixView& weight,
                         const MatrixView& rstd) {
  if (weight.empty()) {
    Run(ops::Add{shared_.d_norm, shared_.dx});
  } else {
    Run(ops::RmsNormBackward{shared_.d_norm, x, weight, rstd, shared_.dx, Store::kAdd});
  }
}

void Layer::ProjectQkv() {
  ForwardGroup(context_, LinearGroup::kQkv, shared_.norm, qkv_, Store::kSet);
  if (!copies_k_v_) return;
  Run(ops::Copy{a_.k, k_});
  Run(ops::Copy{a_.v, v_});
}

// Where outputs have a gate.
void Layer::GateAttention() {
  if (!config_.output_gate) return;
  const std::int64_t head = sizes_.head_dim;
  Run(ops::GatedActivation{Activation::kSigmoid, gate_heads_, Reshape(a_.attn, head),
                           Reshape(mixed_, head)});
}

void Layer::NormAndRotate() {
  if (config_.qk_norm == QkNorm::kRotatedHeads) {
    Rotate(a_.q_pre, a_.k_pre, false);
    NormHeads();
  } else {
    NormHeads();
    Rotate(a_.q, k_, false);
  }
}

void Layer::NormAndRotateBackward() {
  if (config_.qk_norm == QkNorm::kRotatedHeads) {
    NormHeadsBackward();
    Rotate(a_.scratch.d_q, a_.scratch.d_k, true);
  } else {
    Rotate(a_.scratch.d_q, a_.scratch.d_k, true);
    NormHeadsBackward();
  }
}

void Layer::NormHeads() {
  if (!has_qk_norm()) return;
  const float epsilon = config_.rms_norm_eps;
  const std::int64_t k = config_.k_norm_size(context_.layer);
  Run(ops::RmsNorm{q_heads_, w_.q_norm, epsilon, Reshape(a_.q, q_heads_.cols), a_.q_rstd});
  if (!sizes_.has_own_kv()) return;
  Run(ops::RmsNorm{Reshape(a_.k_pre, k), w_.k_norm, epsilon, Reshape(k_, k), a_.k_rstd});
  if (!config_.value_norm) return;
  const std::int64_t head = sizes_.head_dim;
  Run(ops::RmsNorm{Reshape(values(), head), w_.v_norm, epsilon, Reshape(v_, head), a_.v_rstd});
}

void Layer::NormHeadsBackward() {
  if (!has_qk_norm()) return;
  Run(ops::RmsNormBackward{Reshape(a_.scratch.d_q, q_heads_.cols), q_heads_, w_.q_norm, a_.q_rstd,
                           d_q_heads_, Store::kSet});
  if (!sizes_.has_own_kv()) return;
  const MatrixView d_k = Reshape(a_.scratch.d_k, config_.k_norm_size(context_.layer));
  Run(ops::RmsNormBackward{d_k, Reshape(a_.k_pre, d_k.cols), w_.k_norm, a_.k_rstd, d_k,
                           Store::kSet});
  if (!config_.value_norm) return;
  // Values that are keys add their gradient to that of k_proj.
  const MatrixView d_v = Reshape(a_.scratch.d_v, sizes_.head_dim);
  const MatrixView d_in = sizes_.k_is_v ? Reshape(a_.scratch.d_k, sizes_.head_dim) : d_v;
  Run(ops::RmsNormBackward{d_v, Reshape(values(), d_v.cols), w_.v_norm, a_.v_rstd, d_in,
                           sizes_.k_is_v ? Store::kAdd : Store::kSet});
}

void Layer::Rotate(const MatrixView& q, const MatrixView& k, bool inverse) {
  if (sizes_.rope < 0) return;
  RotateHeads(q, sizes_.rope_of_queries(), sizes_.num_attention_heads, inverse);
  if (!sizes_.has_own_kv()) return;
  RotateHeads(k, sizes_.rope, sizes_.num_key_value_heads, inverse);
}

void Layer::RotateHeads(const MatrixView& x, int rope, std::int64_t heads, bool inverse) {
  Run(ops::Rope{context_.inputs.rope_rows[rope], context_.decoder.ropes().table(rope), heads,
                inverse, x});
}

void Layer::NormBranch(const Branch& branch, const MatrixView& input) {
  const LinearOutput out{branch.y, branch.u};
  ForwardGroup(context_, branch.group, input, {&out, 1}, Store::kSet);
  Run(ops::RmsNorm{branch.y, branch.post_norm, config_.rms_norm_eps, shared_.norm, branch.rstd});
}

void Layer::CopyResidual(const MatrixView& x, const MatrixView& x_out) {
  if (shared_.keeps_stream) Run(ops::Copy{x, x_out});
}

void Layer::AddBranch(const Branch& branch, const MatrixView& input, const MatrixView& x,
                      const MatrixView& x_out) {
  if (branch.is_normalized()) {
    CopyResidual(x, x_out);
    NormBranch(branch, input);
    Run(ops::Add{shared_.norm, x_out});
  } else {
    const LinearOutput out{x_out, branch.u, shared_.keeps_stream ? x : MatrixView{}};
    ForwardGroup(context_, branch.group, input, {&out, 1}, Store::kAdd);
  }
}

void Layer::BranchBackward(const Branch& branch, const ConstMatrixView& input,
                           const MatrixView& d_input, LoraAdapter& trained) {
  MatrixView gradient = shared_.dx;
  if (branch.is_normalized()) {
    Run(ops::RmsNormBackward{shared_.dx, branch.y, branch.post_norm, branch.rstd, shared_.d_norm,
                             Store::kSet});
    gradient = shared_.d_norm;
  }
  const ConstMatrixView dy = gradient;
  BackwardGroup(context_, branch.group, input, {&dy, 1}, {&branch.u, 1}, d_input, trained);
}

void Layer::Activate() {
  Run(ops::GatedActivation{config_.hidden_act, a_.gate, a_.up, a_.scratch.act});
}

}  // namespace qlora
