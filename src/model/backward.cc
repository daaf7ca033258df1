// The forward steps of forward.cc in reverse. Only adapters have weight gradients; the gradient of
// the residual stream is kept in one buffer, shared.dx, that every step adds to.
#include <algorithm>

#include "base/matrix.h"
#include "model/decoder.h"
#include "model/pass.h"

namespace qlora {

void Decoder::BackwardMlp(std::int64_t layer, const Pass& pass, LayerActivations& a,
                          Activations& shared) const {
  const auto l = static_cast<std::size_t>(layer);
  const LayerWeights& w = weights_.layers[l];
  const PerLinear<LoraLinear*>& loras = loras_[l];
  if (config_.moe.num_experts > 0) {
    BackwardExperts(layer, pass, a, shared);
    return;
  }

  // forward 10: x_out = x_mid + [RMSNorm](act Wd^T)
  ConstMatrixView dy = shared.dx;
  if (config_.post_norms) {
    backend_.Run(ops::RmsNormBackward{shared.dx, a.down, w.post_mlp_norm, a.down_rstd,
                                      shared.d_norm, Store::kSet});
    dy = shared.d_norm;
  }
  backend_.Run(ops::GatedActivation{config_.hidden_act, a.gate, a.up, shared.act});
  const LinearGradient d_down = GradientOf(dy, a.u.down[0], loras.down[0]);
  BackwardGroup(LinearGroup::kDown, pass, layer, shared.act, {&d_down, 1}, a.u.down, shared.d_act,
                shared);

  // forward 9: act = act(gate) * up.  The gradients replace gate and up.
  backend_.Run(
      ops::GatedActivationBackward{config_.hidden_act, shared.d_act, a.gate, a.up, a.gate, a.up});

  // forward 8: gate, up = norm W^T.  norm is computed again from x_mid.
  backend_.Run(ops::RmsNorm{a.x_mid, w.mlp_norm, config_.rms_norm_eps, shared.norm, a.mlp_rstd});
  std::vector<LinearGradient> d_gate_up;
  if (config_.fused_linears) {
    d_gate_up = {GradientOf(a.gate_up, a.u.gate_up[0], loras.gate_up[0])};
  } else {
    d_gate_up = {GradientOf(a.gate, a.u.gate_up[0], loras.gate_up[0]),
                 GradientOf(a.up, a.u.gate_up[1], loras.gate_up[1])};
  }
  BackwardGroup(LinearGroup::kGateUp, pass, layer, shared.norm, d_gate_up, a.u.gate_up,
                shared.d_norm, shared);

  // forward 7: norm = RMSNorm(x_mid)
  backend_.Run(
      ops::RmsNormBackward{shared.d_norm, a.x_mid, w.mlp_norm, a.mlp_rstd, shared.dx, Store::kAdd});
}

void Decoder::BackwardAttention(std::int64_t layer, const Pass& pass, LayerActivations& a,
                                Activations& shared) const {
  const auto l = static_cast<std::size_t>(layer);
  const LayerWeights& w = weights_.layers[l];
  const LayerConfig& lc = config_.layers[l];
  const PerLinear<LoraLinear*>& loras = loras_[l];

  // forward 6: x_mid = x_in + [RMSNorm](attn Wo^T)
  ConstMatrixView dy = shared.dx;
  if (config_.post_norms) {
    backend_.Run(ops::RmsNormBackward{shared.dx, a.o, w.post_attn_norm, a.o_rstd, shared.d_norm,
                                      Store::kSet});
    dy = shared.d_norm;
  }
  const LinearGradient d_o = GradientOf(dy, a.u.o, loras.o);
  BackwardGroup(LinearGroup::kO, pass, layer, a.attn, {&d_o, 1}, {&a.u.o, 1}, shared.d_attn,
                shared);

  // forward 5: attn = softmax(q k^T) v
  backend_.Run(ops::AttentionBackward{ShapeOf(lc), pass.spans, shared.d_attn, a.q, a.k, a.v, a.attn,
                                      a.lse, shared.d_q, shared.d_k, shared.d_v});

  // forward 4: q, k = RoPE(q, k)
  if (lc.rope >= 0) {
    const RopeTable& table = RopeOf(lc.rope, pass.max_position);
    backend_.Run(ops::Rope{pass.positions, table, config_.num_attention_heads, true, shared.d_q});
    backend_.Run(ops::Rope{pass.positions, table, config_.num_key_value_heads, true, shared.d_k});
  }

  // forward 3: q, k = RMSNorm of each head
  if (config_.qk_norm) {
    const std::int64_t dim = config_.head_dim;
    const MatrixView d_q = Reshape(shared.d_q, dim);
    const MatrixView d_k = Reshape(shared.d_k, dim);
    backend_.Run(
        ops::RmsNormBackward{d_q, Reshape(a.q_pre, dim), w.q_norm, a.q_rstd, d_q, Store::kSet});
    backend_.Run(
        ops::RmsNormBackward{d_k, Reshape(a.k_pre, dim), w.k_norm, a.k_rstd, d_k, Store::kSet});
  }

  // forward 2: q, k, v = norm W^T.  norm is computed again from x_in. Nothing below the lowest
  // adapter is trained, so the gradient stops there.
  backend_.Run(ops::RmsNorm{a.x_in, w.input_norm, config_.rms_norm_eps, shared.norm, a.attn_rstd});
  std::vector<LinearGradient> d_qkv;
  if (config_.fused_linears) {
    d_qkv = {GradientOf(shared.d_qkv, a.u.qkv[0], loras.qkv[0])};
  } else {
    const ConstMatrixView dys[] = {shared.d_q, shared.d_k, shared.d_v};
    for (std::size_t i = 0; i < 3; ++i) {
      d_qkv.push_back(GradientOf(dys[i], a.u.qkv[i], loras.qkv[i]));
    }
  }
  const bool wanted = layer > lowest_trained_layer_;
  BackwardGroup(LinearGroup::kQkv, pass, layer, shared.norm, d_qkv, a.u.qkv,
                wanted ? shared.d_norm : MatrixView{}, shared);

  // forward 1: norm = RMSNorm(x_in)
  if (wanted) {
    backend_.Run(ops::RmsNormBackward{shared.d_norm, a.x_in, w.input_norm, a.attn_rstd, shared.dx,
                                      Store::kAdd});
  }
}

void Decoder::Backward(const Batch& batch, const DropoutState& dropout, Activations& activations,
                       std::span<const Recompute> recompute) const {
  const Pass pass = MakePass(batch, dropout);
  const std::int64_t lowest = std::max<std::int64_t>(lowest_trained_layer_, 0);
  for (std::int64_t l = config_.num_hidden_layers - 1; l >= lowest; --l) {
    LayerActivations& a = activations.layers[l];
    const Recompute level = recompute[l];
    if (RecomputesAttention(level)) ForwardAttention(l, pass, a, activations);
    if (RecomputesMlp(level)) ForwardMlp(l, pass, a, {}, activations);
    BackwardMlp(l, pass, a, activations);
    BackwardAttention(l, pass, a, activations);
  }
  if (adapter_ != nullptr && adapter_->embedding() != nullptr) {
    backend_.Run(ops::EmbedBackward{activations.dx, batch.ids, config_.embed_scale,
                                    adapter_->embedding()->gradient});
  }
}

}  // namespace qlora
