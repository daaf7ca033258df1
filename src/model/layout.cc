// Where activations lie in memory.
#include <algorithm>

#include "model/decoder.h"

namespace qlora {
namespace {

// Columns [begin, begin + count) of m.
MatrixView Columns(const MatrixView& m, std::int64_t begin, std::int64_t count) {
  MatrixView out = m;
  out.cols = count;
  if (m.data != nullptr) {
    out.data = static_cast<std::byte*>(m.data) + BytesOf(m.dtype, static_cast<std::size_t>(begin));
  }
  return out;
}

class Layout {
 public:
  Layout(Carver& carver, const DecoderConfig& config, const Precision& precision,
         const ActivationShape& shape)
      : carver_(carver), c_(config), precision_(precision), shape_(shape), n_(shape.rows) {}

  MatrixView Act(std::int64_t cols) { return carver_.Matrix(precision_.activation, n_, cols); }
  MatrixView Wide(std::int64_t rows, std::int64_t cols) {
    return carver_.Matrix(precision_.wide, rows, cols);
  }

  // q, k and v: three matrices, or columns of one.
  void Qkv(MatrixView& qkv, MatrixView& q, MatrixView& k, MatrixView& v) {
    if (c_.fused_linears) {
      qkv = Act(c_.qkv_features());
      q = Columns(qkv, 0, c_.q_features());
      k = Columns(qkv, c_.q_features(), c_.kv_features());
      v = Columns(qkv, c_.q_features() + c_.kv_features(), c_.kv_features());
    } else {
      q = Act(c_.q_features());
      k = Act(c_.kv_features());
      v = Act(c_.kv_features());
    }
  }

  void AttentionPart(LayerActivations& a) {
    a.attn_rstd = Wide(1, n_);
    Qkv(a.qkv, a.q, a.k, a.v);
    if (c_.qk_norm) {
      a.q_pre = Act(c_.q_features());
      a.k_pre = Act(c_.kv_features());
      a.q_rstd = Wide(1, n_ * c_.num_attention_heads);
      a.k_rstd = Wide(1, n_ * c_.num_key_value_heads);
    }
    a.attn = Act(c_.q_features());
    a.lse = Wide(n_, c_.num_attention_heads);
    if (c_.post_norms) {
      a.o = Act(c_.hidden_size);
      a.o_rstd = Wide(1, n_);
    }
  }

  void MlpPart(LayerActivations& a) {
    a.mlp_rstd = Wide(1, n_);
    if (c_.fused_linears) {
      a.gate_up = Act(2 * c_.intermediate_size);
      a.gate = Columns(a.gate_up, 0, c_.intermediate_size);
      a.up = Columns(a.gate_up, c_.intermediate_size, c_.intermediate_size);
    } else {
      a.gate = Act(c_.intermediate_size);
      a.up = Act(c_.intermediate_size);
    }
    if (c_.post_norms) {
      a.down = Act(c_.hidden_size);
      a.down_rstd = Wide(1, n_);
    }
  }

  void Gradients(Activations& out) {
    out.dx = Wide(n_, c_.hidden_size);
    out.d_norm = Act(c_.hidden_size);
    const MatrixView shared = Act(std::max(c_.intermediate_size, c_.q_features()));
    out.d_act = shared;
    out.d_act.cols = out.d_act.stride = c_.intermediate_size;
    out.d_attn = shared;
    out.d_attn.cols = out.d_attn.stride = c_.q_features();
    Qkv(out.d_qkv, out.d_q, out.d_k, out.d_v);
  }

  void Head(Activations& out) {
    const std::int64_t rows = shape_.head_rows;
    out.head_x = Wide(rows, c_.hidden_size);
    out.head_norm = carver_.Matrix(precision_.activation, rows, c_.hidden_size);
    out.head_rstd = Wide(1, rows);
    if (shape_.training) out.head_dx = Wide(rows, c_.hidden_size);
    out.logits = Wide(rows, c_.vocab_size);
    out.row_loss = Wide(1, rows);
    out.row_hit = Wide(1, rows);
  }

 private:
  Carver& carver_;
  const DecoderConfig& c_;
  const Precision& precision_;
  const ActivationShape& shape_;
  std::int64_t n_;
};

// Copies the views that MlpPart or AttentionPart filled.
void ShareMlp(const LayerActivations& from, LayerActivations& to) {
  to.mlp_rstd = from.mlp_rstd;
  to.gate_up = from.gate_up;
  to.gate = from.gate;
  to.up = from.up;
  to.down = from.down;
  to.down_rstd = from.down_rstd;
}

}  // namespace

std::int64_t HeadChunkRows(const DecoderConfig& config, std::int64_t rows) {
  constexpr std::int64_t kLogitsBytes = 64 << 20;
  const std::int64_t fit = kLogitsBytes / (config.vocab_size * 4) / 64 * 64;
  return std::min(rows, std::max<std::int64_t>(fit, 64));
}

Activations LayoutActivations(Carver& carver, const DecoderConfig& config,
                              const LoraAdapter* adapter, const Precision& precision,
                              const ActivationShape& shape) {
  Layout layout(carver, config, precision, shape);
  Activations out;
  const auto level = [&](std::int64_t l) {
    return shape.training ? shape.recompute[static_cast<std::size_t>(l)] : Recompute::kLayer;
  };
  bool share_attention = false;
  bool share_mlp = false;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    share_attention |= RecomputesAttention(level(l));
    share_mlp |= RecomputesMlp(level(l));
  }

  // The buffers that layers which recompute share. Outside training the residual stream is one
  // buffer that every layer adds to.
  LayerActivations shared;
  const MatrixView residual =
      shape.training ? MatrixView{} : layout.Wide(shape.rows, config.hidden_size);
  if (share_attention) {
    layout.AttentionPart(shared);
    shared.x_mid = shape.training ? layout.Wide(shape.rows, config.hidden_size) : residual;
  }
  if (share_mlp) layout.MlpPart(shared);

  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    LayerActivations a;
    if (RecomputesAttention(level(l))) {
      a = shared;
    } else {
      layout.AttentionPart(a);
      a.x_mid = layout.Wide(shape.rows, config.hidden_size);
    }
    if (RecomputesMlp(level(l))) {
      ShareMlp(shared, a);
    } else {
      layout.MlpPart(a);
    }
    a.x_in = shape.training ? layout.Wide(shape.rows, config.hidden_size) : residual;
    const auto place_u = [&](const LoraLinear& lora) {
      return lora.rank == 0 ? MatrixView{} : layout.Wide(shape.rows, lora.rank);
    };
    if (adapter != nullptr) {
      const PerLinear<LoraLinear>& loras = adapter->layers()[static_cast<std::size_t>(l)];
      for (const LoraLinear& lora : loras.qkv) a.u.qkv.push_back(place_u(lora));
      a.u.o = place_u(loras.o);
      for (const LoraLinear& lora : loras.gate_up) a.u.gate_up.push_back(place_u(lora));
      a.u.down = place_u(loras.down);
    } else {
      a.u.qkv.resize(config.fused_linears ? 1 : 3);
      a.u.gate_up.resize(config.fused_linears ? 1 : 2);
    }
    out.layers.push_back(std::move(a));
  }
  out.x_out = shape.training ? layout.Wide(shape.rows, config.hidden_size) : residual;
  out.norm = layout.Act(config.hidden_size);
  out.act = layout.Act(config.intermediate_size);
  if (shape.training) layout.Gradients(out);
  layout.Head(out);
  return out;
}

KvCache LayoutKvCache(Carver& carver, const DecoderConfig& config, const Precision& precision,
                      std::int64_t capacity) {
  KvCache cache;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    cache.k.push_back(carver.Matrix(precision.activation, capacity, config.kv_features()));
    cache.v.push_back(carver.Matrix(precision.activation, capacity, config.kv_features()));
  }
  return cache;
}

}  // namespace qlora
