// Where activations lie in memory.
#include <algorithm>

#include "base/matrix.h"
#include "model/decoder.h"

namespace qlora {
namespace {

class Layout {
 public:
  Layout(Carver& carver, const DecoderConfig& config, const Precision& precision,
         const ActivationShape& shape)
      : carver_(carver), c_(config), precision_(precision), shape_(shape), n_(shape.rows) {}

  MatrixView Act(std::int64_t cols) { return carver_.Matrix(precision_.activation, n_, cols); }
  // Rows of the MLP: tokens, or slots of experts.
  std::int64_t slots() const {
    return c_.moe.num_experts > 0 ? n_ * c_.moe.num_experts_per_tok : n_;
  }
  MatrixView Slots(std::int64_t cols) {
    return carver_.Matrix(precision_.activation, slots(), cols);
  }
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
      a.gate = Slots(c_.intermediate_size);
      a.up = Slots(c_.intermediate_size);
    }
    if (c_.moe.num_experts > 0) {
      a.router = Wide(n_, c_.moe.num_experts);
      a.pair_weights = Wide(n_, c_.moe.num_experts_per_tok);
      a.slot_weights = Wide(1, slots());
      const auto indices = [&](std::int64_t count) {
        const MatrixView m = carver_.Matrix(DType::kI32, 1, count);
        return IndexSpan{static_cast<std::int32_t*>(m.data), count};
      };
      a.routing = {indices(slots()), indices(slots()), indices(slots()), indices(slots()),
                   indices(c_.moe.num_experts + 1)};
    }
    if (c_.post_norms) {
      a.down = Act(c_.hidden_size);
      a.down_rstd = Wide(1, n_);
    }
  }

  // Linear i of a group takes place i modulo their number: experts share theirs.
  void Adapters(const PerLinear<LoraLinear>& loras, PerLinear<MatrixView>& u) {
    const auto place = [&](const std::vector<LoraLinear>& group, std::int64_t rows,
                           std::vector<MatrixView>& out) {
      for (std::size_t j = 0; j < out.size(); ++j) {
        std::int64_t rank = 0;
        for (std::size_t i = j; i < group.size(); i += out.size()) {
          rank = std::max(rank, group[i].rank);
        }
        if (rank > 0) out[j] = Wide(rows, rank);
      }
    };
    place(loras.qkv, n_, u.qkv);
    if (loras.o.rank > 0) u.o = Wide(n_, loras.o.rank);
    place(loras.gate_up, slots(), u.gate_up);
    place(loras.down, slots(), u.down);
  }

  void Gradients(Activations& out) {
    out.dx = Wide(n_, c_.hidden_size);
    const bool experts = c_.moe.num_experts > 0;
    out.d_norm = experts ? Wide(n_, c_.hidden_size) : Act(c_.hidden_size);
    // The gradients of act and of the attention output never live at the same time.
    out.d_act = carver_.Matrix(precision_.activation, 1,
                               std::max(slots() * c_.intermediate_size, n_ * c_.q_features()));
    out.d_attn = out.d_act;
    const auto shape = [](MatrixView& m, std::int64_t rows, std::int64_t cols) {
      m.rows = rows;
      m.cols = m.stride = cols;
    };
    shape(out.d_act, slots(), c_.intermediate_size);
    shape(out.d_attn, n_, c_.q_features());
    if (experts) {
      out.d_slot = Slots(c_.hidden_size);
      out.d_slot_weights = Wide(1, slots());
      out.d_pair_weights = Wide(n_, c_.moe.num_experts_per_tok);
    }
    Qkv(out.d_qkv, out.d_q, out.d_k, out.d_v);
  }

  void Dora(Activations& out) {
    const std::int64_t widest = WidestLinear(c_);
    out.dora_z = Wide(n_, widest);
    out.dora_gain = Wide(1, widest);
    if (!shape_.training) return;
    out.dora_dz = Act(WidestGroup(c_));
    out.dora_dots = Wide(1, widest);
  }

  void Head(Activations& out) {
    const std::int64_t rows = shape_.head_rows;
    out.head_x = Wide(rows, c_.hidden_size);
    out.head_norm = carver_.Matrix(precision_.activation, rows, c_.hidden_size);
    out.head_rstd = Wide(1, rows);
    if (shape_.training) out.head_dx = Wide(rows, c_.hidden_size);
    out.logits = Wide(rows, c_.vocab_size);
    out.row_stats = Wide(2, rows);
    out.row_scale = Wide(1, rows);
    out.sums = carver_.Matrix(DType::kF64, 1, 2);
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
  to.router = from.router;
  to.pair_weights = from.pair_weights;
  to.slot_weights = from.slot_weights;
  to.routing = from.routing;
}

}  // namespace

Activations LayoutActivations(Carver& carver, const DecoderConfig& config,
                              const LoraAdapter* adapter, const Precision& precision,
                              const ActivationShape& shape) {
  Layout layout(carver, config, precision, shape);
  Activations out;
  const auto level = [&](std::int64_t l) {
    return shape.training ? shape.recompute[l] : Recompute::kLayer;
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
    a.u.qkv.resize(config.fused_linears ? 1 : 3);
    a.u.gate_up.resize(config.fused_linears ? 1 : 2);
    a.u.down.resize(1);
    if (adapter != nullptr) layout.Adapters(adapter->layers()[l], a.u);
    out.layers.push_back(std::move(a));
  }
  out.x_out = shape.training ? layout.Wide(shape.rows, config.hidden_size) : residual;
  out.norm = layout.Act(config.hidden_size);
  out.act = layout.Slots(config.intermediate_size);
  if (config.moe.num_experts > 0) out.slot = layout.Slots(config.hidden_size);
  if (shape.training) {
    layout.Gradients(out);
    out.noise = layout.Wide(1, shape.rows);
  }
  if (adapter != nullptr && adapter->config().use_dora) layout.Dora(out);
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
