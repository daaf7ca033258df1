// The one forward pass: training, evaluation, prefill and decode. backward.cc mirrors its steps.
#include <numeric>

#include "base/matrix.h"
#include "model/decoder.h"
#include "model/pass.h"

namespace qlora {
LinearView Decoder::Bind(const FrozenLinear& frozen, const LoraLinear* lora, const Pass& pass,
                         std::int64_t layer, std::size_t index) const {
  LinearView view{frozen.weight, frozen.bias, {}};
  if (lora == nullptr || lora->rank == 0) return view;
  view.lora.a = lora->a;
  view.lora.b = lora->b;
  view.lora.scale = lora->scale;
  if (pass.dropout.enabled) {
    view.lora.dropout = lora->dropout;
    constexpr std::uint64_t kIndices = 2048;
    static_assert(3 * kMaxExperts + 4 <= kIndices && kMaxLayers * kIndices <= 1 << 23);
    const std::uint64_t place = static_cast<std::uint64_t>(layer) * kIndices + index;
    view.lora.dropout_key = MakeKey(pass.dropout.seed, RandomPlace::kLoraDropout,
                                    (pass.dropout.micro_step << 23) | place);
  }
  return view;
}

std::vector<LinearView> Decoder::BindGroup(LinearGroup group, const Pass& pass,
                                           std::int64_t layer) const {
  const auto l = static_cast<std::size_t>(layer);
  const PerLinear<FrozenLinear>& all = weights_.layers[l].linears;
  const std::span<const FrozenLinear> frozen = GroupOf(all, group);
  const std::span<LoraLinear* const> loras = GroupOf(loras_[l], group);
  std::size_t first = 0;  // qkv: 0 to 2, o: 3, then gate and up, then down
  if (group == LinearGroup::kO) first = 3;
  if (group == LinearGroup::kGateUp) first = 4;
  if (group == LinearGroup::kDown) first = 4 + all.gate_up.size();
  std::vector<LinearView> views;
  for (std::size_t i = 0; i < frozen.size(); ++i) {
    views.push_back(Bind(frozen[i], loras[i], pass, layer, first + i));
  }
  return views;
}

void Decoder::ForwardAttention(std::int64_t layer, const Pass& pass, LayerActivations& a,
                               Activations& shared) const {
  const LayerWeights& w = weights_.layers[layer];
  const LayerConfig& lc = config_.layers[layer];

  // 1. norm = RMSNorm(x_in)
  backend_.Run(ops::RmsNorm{a.x_in, w.input_norm, config_.rms_norm_eps, shared.norm, a.attn_rstd});

  // 2. q, k, v = norm W^T + b + LoRA. With a cache, k and v go straight into their rows of it.
  MatrixView k = a.k;
  MatrixView v = a.v;
  std::int64_t kv_rows = pass.rows;
  if (pass.cache != nullptr) {
    const auto l = static_cast<std::size_t>(layer);
    k = Rows(pass.cache->k[l], pass.cache->length, pass.rows);
    v = Rows(pass.cache->v[l], pass.cache->length, pass.rows);
    kv_rows += pass.cache->length;
  }
  const MatrixView q_out = config_.qk_norm ? a.q_pre : a.q;
  const MatrixView k_out = config_.qk_norm ? a.k_pre : k;
  if (config_.fused_linears) {
    const LinearOutput out{a.qkv, a.u.qkv[0]};
    ForwardGroup(LinearGroup::kQkv, pass, layer, shared.norm, {&out, 1}, Store::kSet, shared);
    if (pass.cache != nullptr) {
      backend_.Run(ops::Copy{a.k, k});
      backend_.Run(ops::Copy{a.v, v});
    }
  } else {
    const LinearOutput out[] = {{q_out, a.u.qkv[0]}, {k_out, a.u.qkv[1]}, {v, a.u.qkv[2]}};
    ForwardGroup(LinearGroup::kQkv, pass, layer, shared.norm, out, Store::kSet, shared);
  }

  // 3. q, k = RMSNorm of each head
  if (config_.qk_norm) {
    const std::int64_t dim = config_.head_dim;
    backend_.Run(ops::RmsNorm{Reshape(q_out, dim), w.q_norm, config_.rms_norm_eps,
                              Reshape(a.q, dim), a.q_rstd});
    backend_.Run(ops::RmsNorm{Reshape(k_out, dim), w.k_norm, config_.rms_norm_eps, Reshape(k, dim),
                              a.k_rstd});
  }

  // 4. q, k = RoPE(q, k)
  if (lc.rope >= 0) {
    const RopeTable& table = RopeOf(lc.rope, pass.max_position);
    backend_.Run(ops::Rope{pass.positions, table, config_.num_attention_heads, false, a.q});
    backend_.Run(ops::Rope{pass.positions, table, config_.num_key_value_heads, false, k});
  }

  // 5. attn = softmax(q k^T) v
  if (pass.cache != nullptr) {
    const auto l = static_cast<std::size_t>(layer);
    k = Rows(pass.cache->k[l], 0, kv_rows);
    v = Rows(pass.cache->v[l], 0, kv_rows);
  }
  backend_.Run(ops::Attention{ShapeOf(lc), pass.spans, a.q, k, v, a.attn, a.lse});

  // 6. x_mid = x_in + [RMSNorm](attn Wo^T)
  if (a.x_mid.data != a.x_in.data) backend_.Run(ops::Copy{a.x_in, a.x_mid});
  const LinearOutput out{config_.post_norms ? a.o : a.x_mid, a.u.o};
  ForwardGroup(LinearGroup::kO, pass, layer, a.attn, {&out, 1},
               config_.post_norms ? Store::kSet : Store::kAdd, shared);
  if (config_.post_norms) {
    backend_.Run(ops::RmsNorm{a.o, w.post_attn_norm, config_.rms_norm_eps, shared.norm, a.o_rstd});
    backend_.Run(ops::Add{shared.norm, a.x_mid});
  }
}

void Decoder::ForwardMlp(std::int64_t layer, const Pass& pass, LayerActivations& a,
                         MatrixView x_out, Activations& shared) const {
  const LayerWeights& w = weights_.layers[layer];

  // 7. norm = RMSNorm(x_mid)
  backend_.Run(ops::RmsNorm{a.x_mid, w.mlp_norm, config_.rms_norm_eps, shared.norm, a.mlp_rstd});

  if (config_.moe.num_experts > 0) {
    ForwardExperts(layer, pass, a, x_out, shared);
    return;
  }

  // 8. gate, up = norm W^T + b + LoRA
  if (config_.fused_linears) {
    const LinearOutput out{a.gate_up, a.u.gate_up[0]};
    ForwardGroup(LinearGroup::kGateUp, pass, layer, shared.norm, {&out, 1}, Store::kSet, shared);
  } else {
    const LinearOutput out[] = {{a.gate, a.u.gate_up[0]}, {a.up, a.u.gate_up[1]}};
    ForwardGroup(LinearGroup::kGateUp, pass, layer, shared.norm, out, Store::kSet, shared);
  }
  // A recomputing backward pass needs no more, unless the block's output was normalised.
  if (x_out.empty() && !config_.post_norms) return;

  // 9. act = act(gate) * up
  backend_.Run(ops::GatedActivation{config_.hidden_act, a.gate, a.up, shared.act});

  // 10. x_out = x_mid + [RMSNorm](act Wd^T)
  if (!x_out.empty() && x_out.data != a.x_mid.data) {
    backend_.Run(ops::Copy{a.x_mid, x_out});
  }
  const LinearOutput out{config_.post_norms ? a.down : x_out, a.u.down[0]};
  ForwardGroup(LinearGroup::kDown, pass, layer, shared.act, {&out, 1},
               config_.post_norms ? Store::kSet : Store::kAdd, shared);
  if (config_.post_norms) {
    backend_.Run(
        ops::RmsNorm{a.down, w.post_mlp_norm, config_.rms_norm_eps, shared.norm, a.down_rstd});
    if (!x_out.empty()) backend_.Run(ops::Add{shared.norm, x_out});
  }
}

void Decoder::Embed(std::span<const std::int32_t> ids, Activations& activations) const {
  CheckIndices("ids", ids, config_.vocab_size);
  backend_.Run(ops::Embed{ids, weights_.embed, config_.embed_scale, activations.layers[0].x_in});
}

void Decoder::ForwardLayers(const Pass& pass, Activations& activations) const {
  for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) {
    LayerActivations& a = activations.layers[l];
    const bool last = l + 1 == config_.num_hidden_layers;
    const MatrixView x_out = last ? activations.x_out : activations.layers[l + 1].x_in;
    ForwardAttention(l, pass, a, activations);
    ForwardMlp(l, pass, a, x_out, activations);
  }
}

void Decoder::Forward(const Batch& batch, const DropoutState& dropout,
                      Activations& activations) const {
  const Pass pass = MakePass(batch, dropout);
  Embed(batch.ids, activations);
  AddEmbeddingNoise(batch, pass, activations);
  ForwardLayers(pass, activations);
}

void Decoder::ForwardCached(std::span<const std::int32_t> ids, KvCache& cache,
                            Activations& activations) const {
  const auto rows = static_cast<std::int64_t>(ids.size());
  std::vector<std::int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(cache.length));
  Pass pass;
  pass.rows = rows;
  pass.positions = positions;
  pass.max_position = cache.length + rows - 1;
  pass.spans = {{0, rows, 0, cache.length + rows}};
  pass.cache = &cache;
  Embed(ids, activations);
  ForwardLayers(pass, activations);
  cache.length += rows;
}

}  // namespace qlora
