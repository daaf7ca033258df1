// docs/math/gated_delta_rule.md has the formulas of the rule itself.
#include "pass/blocks/delta_rule.h"

#include "base/matrix.h"
#include "pass/blocks/unfold.h"
#include "pass/linear_group.h"

namespace qlora {
namespace {

// The columns of the convolution's output.
struct DeltaInputs {
  DeltaInputs(const MatrixView& conv, const DeltaRuleShape& shape)
      : q(Columns(conv, 0, shape.key_heads * shape.key_dim)),
        k(Columns(conv, q.cols, q.cols)),
        v(Columns(conv, 2 * q.cols, shape.heads * shape.value_dim)) {}

  MatrixView q, k;  // (N, G*K)
  MatrixView v;     // (N, H*V)
};

// Calls copy(fused, apart) for the parts of the outputs of fused linears.
template <typename Copy>
void ForEachPart(const DeltaRuleShape& shape, const DeltaRuleMixer::Scratch& fused,
                 const MatrixView& qkv, const MatrixView& z, const MatrixView& b,
                 const MatrixView& a, const Copy& copy) {
  // Of one key head: q and k, then the values v of the r heads that read them, then their z.
  const std::int64_t r = shape.heads / shape.key_heads;
  const std::int64_t key = shape.key_dim;
  const std::int64_t value = r * shape.value_dim;
  const std::int64_t block = 2 * key + 2 * value;
  copy(Columns(Reshape(fused.qkvz, block), 2 * key + value, value), Reshape(z, value));
  copy(Columns(Reshape(fused.ba, 2 * r), 0, r), Reshape(b, r));
  copy(Columns(Reshape(fused.ba, 2 * r), r, r), Reshape(a, r));
  const DeltaInputs in(qkv, shape);
  for (std::int64_t g = 0; g < shape.key_heads; ++g) {
    const MatrixView head = Columns(fused.qkvz, g * block, block);
    copy(Columns(head, 0, key), Columns(in.q, g * key, key));
    copy(Columns(head, key, key), Columns(in.k, g * key, key));
    copy(Columns(head, 2 * key, value), Columns(in.v, g * value, value));
  }
}

}  // namespace

void DeltaRuleMixer::Layout(LayerCarver& c, Activations& a) {
  const std::int64_t heads = c.config.delta_rule.heads;
  a.qkv = c.Act(c.rows, c.config.delta_conv_features());
  a.z = c.Act(c.rows, c.config.delta_value_features());
  a.b = c.Act(c.rows, heads);
  a.a = c.Act(c.rows, heads);
  a.o = c.Act(c.rows, c.config.delta_value_features());
  a.o_rstd = c.Wide(1, c.rows * heads);
  a.out = LayoutBranch(c);
}

void DeltaRuleMixer::LayoutScratch(LayerCarver& c, Activations& a) {
  Scratch& s = a.scratch;
  const std::int64_t heads = c.config.delta_rule.heads;
  const std::int64_t values = c.config.delta_value_features();
  const std::int64_t channels = c.config.delta_conv_features();
  s.conv = c.Act(c.rows, channels);
  s.norm = c.Act(c.rows, values);
  s.gated = c.Act(c.rows, values);
  if (c.config.fused_delta) {
    s.qkvz = c.Act(c.rows, channels + values);
    s.ba = c.Act(c.rows, 2 * heads);
  }
  if (c.training) {
    s.d_gated = c.Act(c.rows, values);
    s.d_conv = c.Act(c.rows, channels);
    s.d_b = c.Act(c.rows, heads);
    s.d_a = c.Act(c.rows, heads);
  }
  Scratch::Whole& w = s.whole;
  w = {a.qkv, s.conv, a.a, a.b, a.o, s.norm, s.d_conv, s.d_b, s.d_a};
  if (c.unfolded == 0) return;
  for (MatrixView* matrix :
       {&w.qkv, &w.conv, &w.a, &w.b, &w.o, &w.d_o, &w.d_conv, &w.d_b, &w.d_a}) {
    if (!matrix->empty()) *matrix = c.Act(c.unfolded, matrix->cols);
  }
}

DeltaRuleMixer::State DeltaRuleMixer::LayoutState(LayerCarver& c, std::int64_t slots) {
  const DeltaRuleShape& shape = c.config.delta_rule;
  return {c.Windows(slots, c.config.delta_conv_features()),
          c.Wide(slots * shape.heads * shape.key_dim, shape.value_dim)};
}

DeltaRuleMixer::DeltaRuleMixer(const LayerContext& context, Activations& a)
    : context_(context),
      config_(context.config()),
      shape_(config_.delta_rule),
      w_(context.weights()),
      a_(a),
      s_(a.scratch),
      out_(context, LinearGroup::kO, a.out, w_.post_attn_norm, context.u().o) {
  if (context.pool != nullptr) state_ = std::get<State>(context.pool->layers[context.layer]);
  const std::vector<MatrixView>& u = context.u().qkv;
  if (config_.fused_delta) {
    in_ = {{s_.qkvz, u[0]}, {s_.ba, u[1]}};
    d_in_ = {s_.qkvz, s_.ba};
  } else {
    in_ = {{a_.qkv, u[0]}, {a_.z, u[1]}, {a_.b, u[2]}, {a_.a, u[3]}};
    d_in_ = {s_.conv, a_.z, s_.d_b, s_.d_a};
  }
}

void DeltaRuleMixer::Forward(const BlockInput& in, const MatrixView& x_out) {
  context_.ClearNewSlots(state_.window);
  context_.ClearNewSlots(state_.delta);
  // 2. qkv, z, b, a = norm W^T + LoRA
  Project();
  // 3. q, k, v = silu(conv(qkv))
  Convolve();
  // 4. o = delta rule(q, k, v, a, b)
  Unfold(context_, a_.a, s_.whole.a);
  Unfold(context_, a_.b, s_.whole.b);
  const DeltaInputs inputs(s_.whole.conv, shape_);
  context_.Run(ops::GatedDeltaRule{shape_, context_.inputs.parts, inputs.q, inputs.k, inputs.v,
                                   s_.whole.a, s_.whole.b, w_.delta_rule.rate,
                                   w_.delta_rule.dt_bias, s_.whole.o, state_.delta});
  TakeOwn(context_, s_.whole.o, a_.o);
  // 5. gated = RMSNorm of each head of o * silu(z)
  GateOutput();
  // 6. x_out = x + [RMSNorm](gated Wo^T)
  out_.Forward(s_.gated, in.x(), x_out);
}

void DeltaRuleMixer::Backward(const BlockInput& in, LoraAdapter& trained) {
  const std::int64_t head = shape_.value_dim;
  const MatrixView norm = Reshape(s_.norm, head);
  // 6; the outputs of steps 5 and 3 are computed again.
  GateOutput();
  Convolve();
  out_.Backward(s_.gated, s_.d_gated, trained);
  // 5. The gradients replace z and norm, then norm's becomes that of o.
  context_.Run(
      ops::GatedActivationBackward{Activation::kSilu, s_.d_gated, a_.z, s_.norm, a_.z, s_.norm});
  context_.Run(ops::RmsNormBackward{norm, Reshape(a_.o, head), w_.delta_rule.norm, a_.o_rstd, norm,
                                    Store::kSet});
  // 4
  const Scratch::Whole& whole = s_.whole;
  Unfold(context_, a_.a, whole.a);
  Unfold(context_, a_.b, whole.b);
  GiveOwn(context_, s_.norm, whole.d_o);
  const DeltaInputs inputs(whole.conv, shape_);
  const DeltaInputs d_inputs(whole.d_conv, shape_);
  context_.Run(ops::GatedDeltaRuleBackward{shape_, context_.inputs.parts, whole.d_o, inputs.q,
                                           inputs.k, inputs.v, whole.a, whole.b, w_.delta_rule.rate,
                                           w_.delta_rule.dt_bias, d_inputs.q, d_inputs.k,
                                           d_inputs.v, whole.d_a, whole.d_b});
  Fold(context_, whole.d_a, s_.d_a);
  Fold(context_, whole.d_b, s_.d_b);
  // 3. The gradient of qkv takes the place of q, k and v.
  context_.Run(ops::CausalConvBackward{Activation::kSilu, context_.inputs.parts, whole.d_conv,
                                       whole.qkv, w_.conv.weight, w_.conv.bias, whole.conv});
  Fold(context_, whole.conv, s_.conv);
  // 2, 1
  if (config_.fused_delta) {
    ForEachPart(shape_, s_, s_.conv, a_.z, s_.d_b, s_.d_a,
                [&](const MatrixView& fused, const MatrixView& apart) {
                  context_.Run(ops::Copy{apart, fused});
                });
  }
  in.Backward(LinearGroup::kQkv, d_in_, context_.u().qkv, trained);
}

void DeltaRuleMixer::Project() {
  ForwardGroup(context_, LinearGroup::kQkv, context_.buffers.norm, in_, Store::kSet);
  if (!config_.fused_delta) return;
  ForEachPart(shape_, s_, a_.qkv, a_.z, a_.b, a_.a,
              [&](const MatrixView& fused, const MatrixView& apart) {
                context_.Run(ops::Copy{fused, apart});
              });
}

void DeltaRuleMixer::Convolve() {
  Unfold(context_, a_.qkv, s_.whole.qkv);
  context_.Run(ops::CausalConv{Activation::kSilu, context_.inputs.parts, s_.whole.qkv,
                               w_.conv.weight, w_.conv.bias, s_.whole.conv, state_.window});
}

void DeltaRuleMixer::GateOutput() {
  const std::int64_t head = shape_.value_dim;
  context_.Run(ops::RmsNorm{Reshape(a_.o, head), w_.delta_rule.norm, config_.rms_norm_eps,
                            Reshape(s_.norm, head), a_.o_rstd});
  context_.Run(ops::GatedActivation{Activation::kSilu, a_.z, s_.norm, s_.gated});
}

}  // namespace qlora
