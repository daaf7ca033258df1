// The gated delta rule that Qwen3.5 has in the place of attention in most layers: steps 2 to 5 of
// layer.cc. Forward, then the same steps in reverse. docs/math/gated_delta_rule.md has the formulas
// of the rule itself.
#include "pass/delta_rule.h"

#include "pass/layer.h"

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
void ForEachPart(const DeltaRuleShape& shape, const DeltaRuleScratch& fused, const MatrixView& qkv,
                 const MatrixView& z, const MatrixView& b, const MatrixView& a, const Copy& copy) {
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

DeltaRuleActivations LayoutDeltaRule(Carver& carver, const DecoderConfig& config,
                                     const Precision& precision, std::int64_t rows) {
  const auto act = [&](std::int64_t cols) {
    return carver.Matrix(precision.activation, rows, cols);
  };
  const std::int64_t heads = config.delta_rule.heads;
  DeltaRuleActivations out;
  out.qkv = act(config.delta_conv_features());
  out.z = act(config.delta_value_features());
  out.b = act(heads);
  out.a = act(heads);
  out.o = act(config.delta_value_features());
  out.o_rstd = carver.Matrix(precision.wide, 1, rows * heads);
  return out;
}

DeltaRuleScratch LayoutDeltaRuleScratch(Carver& carver, const DecoderConfig& config,
                                        const Precision& precision, std::int64_t rows,
                                        bool training) {
  const auto act = [&](std::int64_t cols) {
    return carver.Matrix(precision.activation, rows, cols);
  };
  DeltaRuleScratch out;
  out.conv = act(config.delta_conv_features());
  out.norm = act(config.delta_value_features());
  out.gated = act(config.delta_value_features());
  if (config.fused_delta) {
    out.qkvz = act(config.delta_conv_features() + config.delta_value_features());
    out.ba = act(2 * config.delta_rule.heads);
  }
  if (!training) return out;
  out.d_gated = act(config.delta_value_features());
  out.d_conv = act(config.delta_conv_features());
  out.d_b = act(config.delta_rule.heads);
  out.d_a = act(config.delta_rule.heads);
  return out;
}

void Layer::BindDeltaRule() {
  const DeltaRuleActivations& a = a_.delta_rule;
  const DeltaRuleScratch& s = a_.scratch.delta_rule;
  if (config_.fused_delta) {
    qkv_ = {{s.qkvz, a_.u.qkv[0]}, {s.ba, a_.u.qkv[1]}};
    d_qkv_ = {s.qkvz, s.ba};
  } else {
    qkv_ = {{a.qkv, a_.u.qkv[0]}, {a.z, a_.u.qkv[1]}, {a.b, a_.u.qkv[2]}, {a.a, a_.u.qkv[3]}};
    d_qkv_ = {s.conv, a.z, s.d_b, s.d_a};
  }
  mixed_ = s.gated;
  d_mixed_ = s.d_gated;
}

void Layer::RunDeltaRule() {
  const DeltaRuleActivations& a = a_.delta_rule;
  // 2. qkv, z, b, a = norm W^T + LoRA
  ForwardGroup(context_, LinearGroup::kQkv, shared_.norm, qkv_, Store::kSet);
  if (config_.fused_delta) {
    ForEachPart(config_.delta_rule, a_.scratch.delta_rule, a.qkv, a.z, a.b, a.a,
                [&](const MatrixView& fused, const MatrixView& apart) {
                  Run(ops::Copy{fused, apart});
                });
  }
  // 3. q, k, v = silu(conv(qkv))
  ConvolveDeltaInputs();
  // 4. o = delta rule(q, k, v, a, b)
  const DeltaInputs in(a_.scratch.delta_rule.conv, config_.delta_rule);
  Run(ops::GatedDeltaRule{config_.delta_rule, context_.inputs.parts, in.q, in.k, in.v, a.a, a.b,
                          w_.delta_rule.rate, w_.delta_rule.dt_bias, a.o, delta_});
  // 5. gated = RMSNorm of each head of o * silu(z)
  GateDeltaOutput();
}

void Layer::RemixDeltaRule() {
  // 5; the output of step 3 is computed again as well.
  GateDeltaOutput();
  ConvolveDeltaInputs();
}

void Layer::DeltaRuleBackward() {
  const DeltaRuleActivations& a = a_.delta_rule;
  const DeltaRuleScratch& s = a_.scratch.delta_rule;
  const std::int64_t head = config_.delta_rule.value_dim;
  const MatrixView norm = Reshape(s.norm, head);
  // 5. The gradients replace z and norm, then norm's becomes that of o.
  Run(ops::GatedActivationBackward{Activation::kSilu, s.d_gated, a.z, s.norm, a.z, s.norm});
  Run(ops::RmsNormBackward{norm, Reshape(a.o, head), w_.delta_rule.norm, a.o_rstd, norm,
                           Store::kSet});
  // 4
  const DeltaInputs in(s.conv, config_.delta_rule);
  const DeltaInputs d_in(s.d_conv, config_.delta_rule);
  Run(ops::GatedDeltaRuleBackward{config_.delta_rule, context_.inputs.parts, s.norm, in.q, in.k,
                                  in.v, a.a, a.b, w_.delta_rule.rate, w_.delta_rule.dt_bias, d_in.q,
                                  d_in.k, d_in.v, s.d_a, s.d_b});
  // 3. The gradient of qkv takes the place of q, k and v.
  Run(ops::CausalConvBackward{Activation::kSilu, context_.inputs.parts, s.d_conv, a.qkv,
                              w_.conv.weight, w_.conv.bias, s.conv});
  if (!config_.fused_delta) return;
  ForEachPart(config_.delta_rule, s, s.conv, a.z, s.d_b, s.d_a,
              [&](const MatrixView& fused, const MatrixView& apart) {
                Run(ops::Copy{apart, fused});
              });
}

void Layer::ConvolveDeltaInputs() {
  Run(ops::CausalConv{Activation::kSilu, context_.inputs.parts, a_.delta_rule.qkv, w_.conv.weight,
                      w_.conv.bias, a_.scratch.delta_rule.conv, window_});
}

void Layer::GateDeltaOutput() {
  const DeltaRuleScratch& s = a_.scratch.delta_rule;
  const std::int64_t head = config_.delta_rule.value_dim;
  Run(ops::RmsNorm{Reshape(a_.delta_rule.o, head), w_.delta_rule.norm, config_.rms_norm_eps,
                   Reshape(s.norm, head), a_.delta_rule.o_rstd});
  Run(ops::GatedActivation{Activation::kSilu, a_.delta_rule.z, s.norm, s.gated});
}

}  // namespace qlora
