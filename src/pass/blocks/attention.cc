#include "pass/blocks/attention.h"

#include "base/matrix.h"
#include "pass/blocks/unfold.h"
#include "pass/linear_group.h"

namespace qlora {

// ---- Buffers.

void AttentionMixer::LayoutShared(LayerCarver& c, Activations& a) {
  a.k = c.Act(c.rows, c.sizes.kv_features());
  a.v = c.Act(c.rows, c.sizes.kv_features());
  if (!c.training) return;
  a.d_k_others = c.Wide(c.rows, c.sizes.kv_features());
  a.d_v_others = c.Wide(c.rows, c.sizes.kv_features());
}

void AttentionMixer::Layout(LayerCarver& c, Activations& a) {
  const std::int64_t q = c.sizes.q_features();
  const std::int64_t kv = c.sizes.kv_features();
  const bool has_own_kv = c.sizes.has_own_kv();
  if (!has_own_kv || c.config.is_kv_shared(c.layer)) {
    a.q = c.Act(c.rows, q);
  } else {
    LayoutQkv(c, a.qkv, a.q, a.k, a.v);
  }
  const OutputGate gate = c.config.output_gate;
  if (gate == OutputGate::kHeads) a.gate = c.Act(c.rows, c.sizes.num_attention_heads);
  if (gate == OutputGate::kFull) a.q_gate = c.Act(c.rows, 2 * q);
  if (c.config.qk_norm != QkNorm::kNone) {
    if (gate != OutputGate::kFull) a.q_pre = c.Act(c.rows, q);
    a.q_rstd = c.Wide(1, c.rows * q / c.config.q_norm_size(c.layer));
    if (has_own_kv) {
      a.k_pre = c.Act(c.rows, kv);
      a.k_rstd = c.Wide(1, c.rows * kv / c.config.k_norm_size(c.layer));
    }
  }
  if (c.config.value_norm && has_own_kv) {
    if (!c.sizes.k_is_v) a.v_pre = c.Act(c.rows, kv);
    a.v_rstd = c.Wide(1, c.rows * c.sizes.num_key_value_heads);
  }
  a.attn = c.Act(c.rows, q);
  a.lse = c.Wide(c.rows, c.sizes.num_attention_heads);
  a.o = LayoutBranch(c);
}

void AttentionMixer::LayoutScratch(LayerCarver& c, Activations& a) {
  Scratch& s = a.scratch;
  const std::int64_t q = c.sizes.q_features();
  if (c.training) s.d_attn = c.LastInputGradient(c.rows, q);
  const OutputGate gate = c.config.output_gate;
  if (gate != OutputGate::kNone) s.gated = c.Act(c.rows, q);
  if (c.unfolded > 0) {
    const std::int64_t kv = c.sizes.kv_features();
    for (MatrixView* matrix : {&s.k, &s.v}) *matrix = c.Act(c.unfolded, kv);
    if (c.training) {
      for (MatrixView* matrix : {&s.d_all_k, &s.d_all_v}) *matrix = c.Act(c.unfolded, kv);
    }
  }
  if (!c.training) return;
  LayoutQkv(c, s.d_qkv, s.d_q, s.d_k, s.d_v);
  if (gate == OutputGate::kFull) s.d_q_gate = c.Act(c.rows, 2 * q);
}

void AttentionMixer::LayoutQkv(LayerCarver& c, MatrixView& qkv, MatrixView& q, MatrixView& k,
                               MatrixView& v) {
  const std::int64_t q_features = c.sizes.q_features();
  const std::int64_t kv_features = c.sizes.kv_features();
  if (c.config.fused_qkv) {
    qkv = c.Act(c.rows, c.sizes.qkv_features());
    q = Columns(qkv, 0, q_features);
    k = Columns(qkv, q_features, kv_features);
    v = Columns(qkv, q_features + kv_features, kv_features);
  } else {
    q = c.Act(c.rows, q_features);
    k = c.Act(c.rows, kv_features);
    v = c.Act(c.rows, kv_features);
  }
}

AttentionMixer::State AttentionMixer::LayoutState(LayerCarver& c, std::int64_t slots) {
  if (!c.sizes.has_own_kv()) return {};
  const std::int64_t rows = slots * c.rows;
  return {c.Act(rows, c.sizes.kv_features()), c.Act(rows, c.sizes.kv_features())};
}

void AttentionMixer::ZeroShared(Backend& backend, Activations& a) {
  backend.Run(ops::Zero{a.d_k_others});
  backend.Run(ops::Zero{a.d_v_others});
}

// ---- Views. They are chosen once, so that the steps have no cases for families that fuse linears.

AttentionMixer::AttentionMixer(const LayerContext& context, Activations& a)
    : context_(context),
      config_(context.config()),
      sizes_(config_.layer(context.layer)),
      shape_{sizes_.num_attention_heads, sizes_.num_key_value_heads, sizes_.head_dim,
             config_.attention_scale,    config_.attention_softcap,  sizes_.window},
      w_(context.weights()),
      a_(a),
      owner_(sizes_.has_own_kv()
                 ? a
                 : std::get<Activations>(context.buffers.layers[sizes_.kv_layer].mixer)),
      s_(a.scratch),
      o_(context, LinearGroup::kO, a.o, w_.post_attn_norm, context.u().o),
      mixed_(config_.output_gate == OutputGate::kNone ? a.attn : s_.gated) {
  BindKeys();
  BindHeads();
  BindLinears();
}

void AttentionMixer::BindKeys() {
  all_k_ = WholeOf(context_, owner_.k, s_.k);
  all_v_ = WholeOf(context_, owner_.v, s_.v);
  if (context_.pool == nullptr) return;
  const std::int64_t owner = sizes_.has_own_kv() ? context_.layer : sizes_.kv_layer;
  const State& pool = std::get<State>(context_.pool->layers[owner]);
  all_k_ = pool.k;
  all_v_ = pool.v;
}

void AttentionMixer::BindHeads() {
  const std::int64_t head = sizes_.head_dim;
  if (config_.output_gate == OutputGate::kFull) {
    // The rows of one head: K of query, then K of gate.
    const MatrixView heads = Reshape(a_.q_gate, 2 * head);
    q_heads_ = Columns(heads, 0, head);
    gate_heads_ = Columns(heads, head, head);
    if (s_.d_q_gate.empty()) return;
    d_q_heads_ = Columns(Reshape(s_.d_q_gate, 2 * head), 0, head);
    d_gate_heads_ = Columns(Reshape(s_.d_q_gate, 2 * head), head, head);
  } else if (has_qk_norm()) {
    const std::int64_t size = config_.q_norm_size(context_.layer);
    q_heads_ = Reshape(a_.q_pre, size);
    if (!s_.d_q.empty()) d_q_heads_ = Reshape(s_.d_q, size);
  }
}

void AttentionMixer::BindLinears() {
  const auto add = [&](const MatrixView& y, const MatrixView& d_y) {
    qkv_.Add({y, context_.u().qkv[qkv_.size()]});
    d_qkv_.Add(d_y);
  };
  const bool has_q_gate = config_.output_gate == OutputGate::kFull;
  if (config_.fused_qkv) {
    add(a_.qkv, s_.d_qkv);
  } else {
    add(has_q_gate      ? a_.q_gate
        : has_qk_norm() ? a_.q_pre
                        : a_.q,
        has_q_gate ? s_.d_q_gate : s_.d_q);
    if (sizes_.has_own_kv()) add(has_qk_norm() ? a_.k_pre : a_.k, s_.d_k);
    if (sizes_.has_own_kv() && !sizes_.k_is_v) add(config_.value_norm ? a_.v_pre : a_.v, s_.d_v);
  }
  if (config_.output_gate == OutputGate::kHeads) add(a_.gate, a_.gate);
}

// ---- Steps.

void AttentionMixer::Forward(const BlockInput& in, const MatrixView& x_out) {
  // 2. q, k, v = norm W^T + b + LoRA
  Project();
  // 3. q, k [, v] = RMSNorm of each head
  // 4. q, k = RoPE(q, k)
  NormAndRotate();
  // 5. attn = softmax(q k^T) v [* sigmoid(gate)]
  PlaceKeys();
  context_.Run(
      ops::Attention{shape_, context_.inputs.spans, a_.q, all_k_, all_v_, a_.attn, a_.lse});
  if (config_.sinks) context_.Run(ops::AttentionSinks{w_.sinks, a_.lse, a_.attn});
  Gate();
  // 6. x_out = x + [RMSNorm](attn Wo^T)
  o_.Forward(mixed_, in.x(), x_out);
}

void AttentionMixer::Backward(const BlockInput& in, LoraAdapter& trained) {
  // 6
  Gate();
  o_.Backward(mixed_, s_.d_attn, trained);
  // 5
  GateBackward();
  PlaceKeys();
  const MatrixView d_all_k = WholeOf(context_, s_.d_k, s_.d_all_k);
  const MatrixView d_all_v = WholeOf(context_, s_.d_v, s_.d_all_v);
  context_.Run(ops::AttentionBackward{shape_, context_.inputs.spans, s_.d_attn, a_.q, all_k_,
                                      all_v_, a_.attn, a_.lse, s_.d_q, d_all_k, d_all_v});
  Fold(context_, d_all_k, s_.d_k);
  Fold(context_, d_all_v, s_.d_v);
  ShareGradients();
  // 4, 3
  NormAndRotateBackward();
  // 2, 1
  in.Backward(LinearGroup::kQkv, d_qkv_, context_.u().qkv, trained);
}

void AttentionMixer::Project() {
  ForwardGroup(context_, LinearGroup::kQkv, context_.buffers.norm, qkv_, Store::kSet);
}

void AttentionMixer::NormAndRotate() {
  if (config_.qk_norm == QkNorm::kRotatedHeads) {
    Rotate(a_.q_pre, a_.k_pre, false);
    NormHeads();
  } else {
    NormHeads();
    Rotate(a_.q, a_.k, false);
  }
}

void AttentionMixer::NormAndRotateBackward() {
  if (config_.qk_norm == QkNorm::kRotatedHeads) {
    NormHeadsBackward();
    Rotate(s_.d_q, s_.d_k, true);
  } else {
    Rotate(s_.d_q, s_.d_k, true);
    NormHeadsBackward();
  }
}

void AttentionMixer::NormHeads() {
  if (!has_qk_norm()) return;
  const float epsilon = config_.rms_norm_eps;
  const std::int64_t k = config_.k_norm_size(context_.layer);
  context_.Run(ops::RmsNorm{q_heads_, w_.q_norm, epsilon, Reshape(a_.q, q_heads_.cols), a_.q_rstd});
  if (!sizes_.has_own_kv()) return;
  context_.Run(ops::RmsNorm{Reshape(a_.k_pre, k), w_.k_norm, epsilon, Reshape(a_.k, k), a_.k_rstd});
  if (!config_.value_norm) return;
  const std::int64_t head = sizes_.head_dim;
  context_.Run(
      ops::RmsNorm{Reshape(values(), head), w_.v_norm, epsilon, Reshape(a_.v, head), a_.v_rstd});
}

void AttentionMixer::NormHeadsBackward() {
  if (!has_qk_norm()) return;
  context_.Run(ops::RmsNormBackward{Reshape(s_.d_q, q_heads_.cols), q_heads_, w_.q_norm, a_.q_rstd,
                                    d_q_heads_, Store::kSet});
  if (!sizes_.has_own_kv()) return;
  const MatrixView d_k = Reshape(s_.d_k, config_.k_norm_size(context_.layer));
  context_.Run(ops::RmsNormBackward{d_k, Reshape(a_.k_pre, d_k.cols), w_.k_norm, a_.k_rstd, d_k,
                                    Store::kSet});
  if (!config_.value_norm) return;
  // Values that are keys add their gradient to that of k_proj.
  const MatrixView d_v = Reshape(s_.d_v, sizes_.head_dim);
  const MatrixView d_in = sizes_.k_is_v ? Reshape(s_.d_k, sizes_.head_dim) : d_v;
  context_.Run(ops::RmsNormBackward{d_v, Reshape(values(), d_v.cols), w_.v_norm, a_.v_rstd, d_in,
                                    sizes_.k_is_v ? Store::kAdd : Store::kSet});
}

void AttentionMixer::Rotate(const MatrixView& q, const MatrixView& k, bool inverse) {
  if (sizes_.rope < 0) return;
  RotateHeads(q, sizes_.rope_of_queries(), sizes_.num_attention_heads, inverse);
  if (!sizes_.has_own_kv()) return;
  RotateHeads(k, sizes_.rope, sizes_.num_key_value_heads, inverse);
}

void AttentionMixer::RotateHeads(const MatrixView& x, int rope, std::int64_t heads, bool inverse) {
  context_.Run(ops::Rope{context_.inputs.rope_rows[rope], context_.decoder.ropes().table(rope),
                         heads, inverse, x});
}

void AttentionMixer::PlaceKeys() {
  if (context_.pool == nullptr) {
    Unfold(context_, owner_.k, all_k_);
    Unfold(context_, owner_.v, all_v_);
    return;
  }
  if (!sizes_.has_own_kv()) return;  // the owner's are there
  // Behind the keys of earlier passes in each slot.
  for (const AttentionSpan& span : context_.inputs.spans) {
    const std::int64_t first = span.kv_begin + span.kv_rows - span.q_rows;
    const auto place = [&](const MatrixView& rows, const MatrixView& all) {
      context_.Run(ops::Copy{Rows(rows, span.q_begin, span.q_rows), Rows(all, first, span.q_rows)});
    };
    place(a_.k, all_k_);
    place(a_.v, all_v_);
  }
}

// mixed = attn * sigmoid(gate)
void AttentionMixer::Gate() {
  const MatrixView attn = Reshape(a_.attn, sizes_.head_dim);
  const MatrixView mixed = Reshape(mixed_, sizes_.head_dim);
  switch (config_.output_gate) {
    case OutputGate::kNone:
      break;
    case OutputGate::kHeads:
      context_.Run(ops::GateRows{attn, Reshape(a_.gate, 1), mixed});
      break;
    case OutputGate::kFull:
      context_.Run(ops::GatedActivation{Activation::kSigmoid, gate_heads_, attn, mixed});
      break;
  }
}

void AttentionMixer::GateBackward() {
  const MatrixView attn = Reshape(a_.attn, sizes_.head_dim);
  const MatrixView d_attn = Reshape(s_.d_attn, sizes_.head_dim);
  switch (config_.output_gate) {
    case OutputGate::kNone:
      break;
    case OutputGate::kHeads: {
      const MatrixView gate = Reshape(a_.gate, 1);
      context_.Run(ops::GateRowsBackward{d_attn, attn, gate, gate, d_attn});
      break;
    }
    case OutputGate::kFull:
      context_.Run(ops::GatedActivationBackward{Activation::kSigmoid, d_attn, gate_heads_, attn,
                                                d_gate_heads_, d_attn});
      break;
  }
}

// The layer that keys and values are of runs backward behind all that read them.
void AttentionMixer::ShareGradients() {
  if (!sizes_.has_own_kv()) {
    context_.Run(ops::Add{s_.d_k, owner_.d_k_others});
    context_.Run(ops::Add{s_.d_v, owner_.d_v_others});
  } else if (!a_.d_k_others.empty()) {
    context_.Run(ops::Add{a_.d_k_others, s_.d_k});
    context_.Run(ops::Add{a_.d_v_others, s_.d_v});
  }
}

}  // namespace qlora
