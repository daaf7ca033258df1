// The forward steps are numbered; each backward function has the same steps in reverse. Only
// adapters have weight gradients; the gradient of the residual stream is kept in one buffer,
// shared_.dx, that every step adds to.
#include "pass/layer.h"

#include "pass/kv_cache.h"

namespace qlora {

Layer::Layer(const Decoder& decoder, const PassInputs& inputs, std::int64_t layer, KvCache* cache,
             const InputObserver* observer, Activations& activations)
    : a_(activations.layers[layer]),
      shared_(activations),
      context_{decoder, inputs, layer, observer, activations},
      w_(decoder.weights().layers[layer]),
      config_(decoder.config()),
      sizes_(config_.layer(layer)),
      shape_{sizes_.num_attention_heads, sizes_.num_key_value_heads, sizes_.head_dim,
             config_.attention_scale,    config_.attention_softcap,  sizes_.window},
      o_{LinearGroup::kO, a_.o, w_.post_attn_norm, a_.o_rstd, a_.u.o},
      down_{LinearGroup::kDown, a_.down, w_.post_mlp_norm, a_.down_rstd, a_.u.down[0]},
      k_(a_.k),
      v_(a_.v),
      all_k_(a_.k),
      all_v_(a_.v) {
  // With a cache, k_ and v_ are its rows behind the rows of earlier passes; attention reads from
  // row 0 on.
  if (cache != nullptr) {
    k_ = Rows(cache->k[layer], cache->length, inputs.rows);
    v_ = Rows(cache->v[layer], cache->length, inputs.rows);
    all_k_ = Rows(cache->k[layer], 0, cache->length + inputs.rows);
    all_v_ = Rows(cache->v[layer], 0, cache->length + inputs.rows);
  }
  if (config_.fused_qkv) {
    qkv_ = {{a_.qkv, a_.u.qkv[0]}};
    d_qkv_ = {a_.scratch.d_qkv};
    copies_k_v_ = cache != nullptr;
  } else {
    const MatrixView& q = has_qk_norm() ? a_.q_pre : a_.q;
    const MatrixView& k = has_qk_norm() ? a_.k_pre : k_;
    qkv_ = {{q, a_.u.qkv[0]}, {k, a_.u.qkv[1]}, {v_, a_.u.qkv[2]}};
    d_qkv_ = {a_.scratch.d_q, a_.scratch.d_k, a_.scratch.d_v};
  }
  if (config_.fused_gate_up) {
    gate_up_ = {{a_.gate_up, a_.u.gate_up[0]}};
    d_gate_up_ = {a_.gate_up};
  } else {
    gate_up_ = {{a_.gate, a_.u.gate_up[0]}, {a_.up, a_.u.gate_up[1]}};
    d_gate_up_ = {a_.gate, a_.up};
  }
}

void Layer::ForwardAttention() {
  // 1. norm = RMSNorm(x_in)
  Norm(a_.x_in, w_.input_norm, a_.attn_rstd);
  // 2. q, k, v = norm W^T + b + LoRA
  ProjectQkv();
  // 3. q, k = RMSNorm of each head
  // 4. q, k = RoPE(q, k)
  NormAndRotate();
  // 5. attn = softmax(q k^T) v
  Run(ops::Attention{shape_, context_.inputs.spans, a_.q, all_k_, all_v_, a_.attn, a_.lse});
  // 6. x_mid = x_in + [RMSNorm](attn Wo^T)
  AddBranch(o_, a_.attn, a_.x_in, a_.x_mid);
}

void Layer::ForwardMlp(const MatrixView& x_out) {
  // 7. norm = RMSNorm(x_mid)
  Norm(a_.x_mid, w_.mlp_norm, a_.mlp_rstd);
  if (config_.moe.num_experts > 0) return ForwardExperts(x_out);
  // 8. gate, up = norm W^T + b + LoRA
  ForwardGroup(context_, LinearGroup::kGateUp, shared_.norm, gate_up_, Store::kSet);
  // 9. act = act(gate) * up
  Activate();
  // 10. x_out = x_mid + [RMSNorm](act Wd^T)
  AddBranch(down_, a_.scratch.act, a_.x_mid, x_out);
}

void Layer::RecomputeMlp() {
  // 7
  Norm(a_.x_mid, w_.mlp_norm, a_.mlp_rstd);
  if (config_.moe.num_experts > 0) return ProjectExperts();
  // 8
  ForwardGroup(context_, LinearGroup::kGateUp, shared_.norm, gate_up_, Store::kSet);
  // 9, 10. The normalised values are needed, the residual stream is not.
  if (!down_.is_normalized()) return;
  Activate();
  NormBranch(down_, a_.scratch.act);
}

void Layer::BackwardMlp(LoraAdapter& trained) {
  if (config_.moe.num_experts > 0) return BackwardExperts(trained);
  // 10
  Activate();
  BranchBackward(down_, a_.scratch.act, a_.scratch.d_act, trained);
  // 9. The gradients replace gate and up.
  Run(ops::GatedActivationBackward{config_.hidden_act, a_.scratch.d_act, a_.gate, a_.up, a_.gate,
                                   a_.up});
  // 8. norm is computed again from x_mid.
  Norm(a_.x_mid, w_.mlp_norm, a_.mlp_rstd);
  BackwardGroup(context_, LinearGroup::kGateUp, shared_.norm, d_gate_up_, TailOf(a_.gate_up),
                a_.u.gate_up, shared_.d_norm, trained);
  // 7
  NormBackward(a_.x_mid, w_.mlp_norm, a_.mlp_rstd);
}

void Layer::BackwardAttention(LoraAdapter& trained, bool wanted) {
  // 6
  BranchBackward(o_, a_.attn, a_.scratch.d_attn, trained);
  // 5
  Run(ops::AttentionBackward{shape_, context_.inputs.spans, a_.scratch.d_attn, a_.q, a_.k, a_.v,
                             a_.attn, a_.lse, a_.scratch.d_q, a_.scratch.d_k, a_.scratch.d_v});
  // 4, 3
  NormAndRotateBackward();
  // 2. norm is computed again from x_in.
  Norm(a_.x_in, w_.input_norm, a_.attn_rstd);
  BackwardGroup(context_, LinearGroup::kQkv, shared_.norm, d_qkv_, {}, a_.u.qkv,
                wanted ? shared_.d_norm : MatrixView{}, trained);
  // 1
  if (wanted) NormBackward(a_.x_in, w_.input_norm, a_.attn_rstd);
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
  const std::int64_t q = config_.q_norm_size(context_.layer);
  const std::int64_t k = config_.k_norm_size(context_.layer);
  Run(ops::RmsNorm{Reshape(a_.q_pre, q), w_.q_norm, epsilon, Reshape(a_.q, q), a_.q_rstd});
  Run(ops::RmsNorm{Reshape(a_.k_pre, k), w_.k_norm, epsilon, Reshape(k_, k), a_.k_rstd});
}

void Layer::NormHeadsBackward() {
  if (!has_qk_norm()) return;
  const MatrixView d_q = Reshape(a_.scratch.d_q, config_.q_norm_size(context_.layer));
  const MatrixView d_k = Reshape(a_.scratch.d_k, config_.k_norm_size(context_.layer));
  Run(ops::RmsNormBackward{d_q, Reshape(a_.q_pre, d_q.cols), w_.q_norm, a_.q_rstd, d_q,
                           Store::kSet});
  Run(ops::RmsNormBackward{d_k, Reshape(a_.k_pre, d_k.cols), w_.k_norm, a_.k_rstd, d_k,
                           Store::kSet});
}

void Layer::Rotate(const MatrixView& q, const MatrixView& k, bool inverse) {
  if (sizes_.rope < 0) return;
  RotateHeads(q, sizes_.rope_of_queries(), sizes_.num_attention_heads, inverse);
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
  BackwardGroup(context_, branch.group, input, {&dy, 1}, TailOf(gradient), {&branch.u, 1}, d_input,
                trained);
}

void Layer::Activate() {
  Run(ops::GatedActivation{config_.hidden_act, a_.gate, a_.up, a_.scratch.act});
}

}  // namespace qlora
