// The buffers that a gated delta rule (Qwen3.5) adds to a pass; delta_rule.cc has its steps. H:
// heads of values, V: their size, C: channels of the convolution.
#ifndef QLORA_PASS_DELTA_RULE_H_
#define QLORA_PASS_DELTA_RULE_H_

#include <cstdint>

#include "backend/backend.h"
#include "base/arena.h"
#include "model/config.h"

namespace qlora {

// The activations of one layer.
struct DeltaRuleActivations {
  MatrixView qkv;  // (N, C) act: before the convolution
  MatrixView z;    // (N, H*V) act: gate of the output; the backward pass leaves its gradient here
  MatrixView b;    // (N, H) act
  MatrixView a;    // (N, H) act
  MatrixView o;    // (N, H*V) act: output of the rule
  MatrixView o_rstd;  // (1, N*H) wide
};

// Scratch that all layers share.
struct DeltaRuleScratch {
  MatrixView conv;   // (N, C) act: q, k and v; the backward pass leaves the gradient of `qkv` here
  MatrixView norm;   // (N, H*V) act: RMSNorm of each head of o; then its gradient, then that of o
  MatrixView gated;  // (N, H*V) act: silu(z) * norm, the input of the last linear
  // Of linears that are fused (Qwen3-Next): their outputs; the backward pass has their gradients
  // here.
  MatrixView qkvz;  // (N, C + H*V) act
  MatrixView ba;    // (N, 2*H) act
  // Backward only.
  MatrixView d_gated;  // (N, H*V) act
  MatrixView d_conv;   // (N, C) act
  MatrixView d_b;      // (N, H) act
  MatrixView d_a;      // (N, H) act
};

DeltaRuleActivations LayoutDeltaRule(Carver& carver, const DecoderConfig& config,
                                     const Precision& precision, std::int64_t rows);
DeltaRuleScratch LayoutDeltaRuleScratch(Carver& carver, const DecoderConfig& config,
                                        const Precision& precision, std::int64_t rows,
                                        bool training);

}  // namespace qlora

#endif  // QLORA_PASS_DELTA_RULE_H_
