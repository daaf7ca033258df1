// The forward steps of forward.cc in reverse. Only adapters have weight gradients; the gradient of
// the residual stream is kept in one buffer, shared.dx, that every step adds to.
#include <algorithm>
#include <map>

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
    backend_.RmsNormBackward(shared.dx, a.down, w.post_mlp_norm, a.down_rstd, shared.d_norm,
                             Store::kSet);
    dy = shared.d_norm;
  }
  backend_.GatedActivation(config_.hidden_act, a.gate, a.up, shared.act);
  const LinearGradient d_down = GradientOf(dy, a.u.down[0], loras.down[0]);
  BackwardGroup(LinearGroup::kDown, pass, layer, shared.act, {&d_down, 1}, a.u.down, shared.d_act,
                shared);

  // forward 9: act = act(gate) * up.  The gradients replace gate and up.
  backend_.GatedActivationBackward(config_.hidden_act, shared.d_act, a.gate, a.up, a.gate, a.up);

  // forward 8: gate, up = norm W^T.  norm is computed again from x_mid.
  backend_.RmsNorm(a.x_mid, w.mlp_norm, config_.rms_norm_eps, shared.norm, a.mlp_rstd);
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
  backend_.RmsNormBackward(shared.d_norm, a.x_mid, w.mlp_norm, a.mlp_rstd, shared.dx, Store::kAdd);
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
    backend_.RmsNormBackward(shared.dx, a.o, w.post_attn_norm, a.o_rstd, shared.d_norm,
                             Store::kSet);
    dy = shared.d_norm;
  }
  const LinearGradient d_o = GradientOf(dy, a.u.o, loras.o);
  BackwardGroup(LinearGroup::kO, pass, layer, a.attn, {&d_o, 1}, {&a.u.o, 1}, shared.d_attn,
                shared);

  // forward 5: attn = softmax(q k^T) v
  backend_.AttentionBackward(ShapeOf(lc), pass.spans, shared.d_attn, a.q, a.k, a.v, a.attn, a.lse,
                             shared.d_q, shared.d_k, shared.d_v);

  // forward 4: q, k = RoPE(q, k)
  if (lc.rope >= 0) {
    const RopeTable& table = RopeOf(lc.rope, pass.max_position);
    backend_.Rope(pass.positions, table, config_.num_attention_heads, true, shared.d_q);
    backend_.Rope(pass.positions, table, config_.num_key_value_heads, true, shared.d_k);
  }

  // forward 3: q, k = RMSNorm of each head
  if (config_.qk_norm) {
    const std::int64_t dim = config_.head_dim;
    const MatrixView d_q = Reshape(shared.d_q, dim);
    const MatrixView d_k = Reshape(shared.d_k, dim);
    backend_.RmsNormBackward(d_q, Reshape(a.q_pre, dim), w.q_norm, a.q_rstd, d_q, Store::kSet);
    backend_.RmsNormBackward(d_k, Reshape(a.k_pre, dim), w.k_norm, a.k_rstd, d_k, Store::kSet);
  }

  // forward 2: q, k, v = norm W^T.  norm is computed again from x_in. Nothing below the lowest
  // adapter is trained, so the gradient stops there.
  backend_.RmsNorm(a.x_in, w.input_norm, config_.rms_norm_eps, shared.norm, a.attn_rstd);
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
    backend_.RmsNormBackward(shared.d_norm, a.x_in, w.input_norm, a.attn_rstd, shared.dx,
                             Store::kAdd);
  }
}

// d_table[ids(n)] += embed_scale dx(n). Rows of the same token are added in their order, one in
// each round, because the rows of one ScatterAddRows are distinct.
void Decoder::BackwardEmbedding(const Batch& batch, Activations& shared) const {
  if (config_.embed_scale != 1) {
    const std::vector<float> scale(config_.hidden_size, config_.embed_scale);
    const MatrixView gain = Rows(shared.x_out, 0, 1);
    ConvertToWide(scale.data(), DType::kF32, 0, gain);
    backend_.ScaleColumns(shared.dx, gain, {}, shared.dx, Store::kSet);
  }
  std::map<std::int32_t, std::size_t> seen;
  std::vector<std::vector<std::int32_t>> rounds;  // rows of dx
  for (std::size_t n = 0; n < batch.ids.size(); ++n) {
    const std::size_t round = seen[batch.ids[n]]++;
    if (round == rounds.size()) rounds.emplace_back();
    rounds[round].push_back(static_cast<std::int32_t>(n));
  }
  for (const std::vector<std::int32_t>& rows : rounds) {
    std::vector<std::int32_t> ids;
    for (const std::int32_t n : rows) ids.push_back(batch.ids[n]);
    const MatrixView gathered = Rows(shared.x_out, 0, std::ssize(rows));
    backend_.GatherRows(shared.dx, rows, gathered);
    backend_.ScatterAddRows(gathered, ids, adapter_->embedding()->gradient);
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
    BackwardEmbedding(batch, activations);
  }
}

LossSum Decoder::Loss(const Batch& batch, double gradient_scale, Activations& activations,
                      std::vector<double>* row_losses) const {
  std::vector<std::int32_t> rows;
  std::vector<std::int32_t> targets;
  for (std::size_t n = 0; n < batch.targets.size(); ++n) {
    if (batch.targets[n] == kIgnoreLabel) continue;
    rows.push_back(static_cast<std::int32_t>(n));
    targets.push_back(batch.targets[n]);
  }
  if (gradient_scale != 0) FillZero(activations.dx);

  LossSum sum;
  const std::int64_t total = static_cast<std::int64_t>(rows.size());
  const std::int64_t chunk = activations.logits.rows;
  const LinearView head{{weights_.head, {}}, {}, {}};
  for (std::int64_t begin = 0; begin < total; begin += chunk) {
    const std::int64_t count = std::min(chunk, total - begin);
    const auto chunk_rows = std::span(rows).subspan(begin, count);
    const auto chunk_targets = std::span(targets).subspan(begin, count);
    MatrixView row_loss = activations.row_loss;
    row_loss.cols = count;
    MatrixView row_hit = activations.row_hit;
    row_hit.cols = count;
    const MatrixView logits = Logits(chunk_rows, activations);
    backend_.CrossEntropy(chunk_targets, config_.final_softcap, gradient_scale, logits, row_loss,
                          row_hit);
    for (std::int64_t i = 0; i < count; ++i) {
      const double loss = RealAt(row_loss, i);
      sum.loss += loss;
      sum.hits += RealAt(row_hit, i) > 0 ? 1 : 0;
      if (row_losses != nullptr) row_losses->push_back(loss);
    }
    if (gradient_scale == 0) continue;

    // The mirror of Logits: head, norm, gather.
    const MatrixView norm = Rows(activations.head_norm, 0, count);
    const MatrixView dx = Rows(activations.head_dx, 0, count);
    MatrixView rstd = activations.head_rstd;
    rstd.cols = count;
    const LinearGradient d_head{logits, {}, {}, {}};
    backend_.LinearBackward({&head, 1}, norm, {&d_head, 1}, dx, Store::kSet);
    if (adapter_ != nullptr && adapter_->head() != nullptr) {
      backend_.WeightGradient(logits, norm, adapter_->head()->gradient);
    }
    backend_.RmsNormBackward(dx, Rows(activations.head_x, 0, count), weights_.final_norm, rstd, dx,
                             Store::kSet);
    backend_.ScatterAddRows(dx, chunk_rows, activations.dx);
  }
  return sum;
}

}  // namespace qlora
