// The gated delta rule (Yang et al., arXiv:2412.06464) that Qwen3.5 has in the place of attention
// in most layers. Steps 2 to 6 of a layer; delta_rule.cc has them, and their mirror beneath. H:
// heads of values, V: their size, C: channels of the convolution.
#ifndef QLORA_PASS_BLOCKS_DELTA_RULE_H_
#define QLORA_PASS_BLOCKS_DELTA_RULE_H_

#include "backend/backend.h"
#include "pass/blocks/branch.h"
#include "pass/blocks/inline_list.h"
#include "pass/blocks/layer_carver.h"

namespace qlora {

struct LayerWeights;

class DeltaRuleMixer {
 public:
  // In memory that all layers share.
  struct Scratch {
    MatrixView conv;   // (N, C) act: q, k and v; the backward pass leaves `qkv`'s gradient here
    MatrixView norm;   // (N, H*V) act: RMSNorm of each head of o; then its gradient, then o's
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
    // What the convolution and the rule read and write: the matrices of N rows themselves, or of M
    // unfolded rows.
    struct Whole {
      MatrixView qkv, conv;  // (M, C) act
      MatrixView a, b;       // (M, H) act
      MatrixView o;          // (M, H*V) act
      MatrixView d_o;        // (M, H*V) act
      MatrixView d_conv;     // (M, C) act
      MatrixView d_b, d_a;   // (M, H) act
    } whole;
  };
  struct Activations {
    using Block = DeltaRuleMixer;
    MatrixView qkv;     // (N, C) act: before the convolution
    MatrixView z;       // (N, H*V) act: gate of the output; the backward pass leaves its gradient
                        // here
    MatrixView b;       // (N, H) act
    MatrixView a;       // (N, H) act
    MatrixView o;       // (N, H*V) act: output of the rule
    MatrixView o_rstd;  // (1, N*H) wide
    BranchActivations out;
    Scratch scratch;
  };
  struct State {
    MatrixView window;  // (slots * (taps - 1), C) act: the last inputs of the convolution
    MatrixView delta;   // (slots * H*K, V) wide
  };
  static constexpr std::int64_t kPromptPart = kRecurrentPart;
  static void Layout(LayerCarver& c, Activations& a);
  static void LayoutScratch(LayerCarver& c, Activations& a);
  static State LayoutState(LayerCarver& c, std::int64_t slots);

  DeltaRuleMixer(const LayerContext& context, Activations& a);

  // x_out = in.x + mixer(norm)
  void Forward(const BlockInput& in, const MatrixView& x_out);
  void Backward(const BlockInput& in, LoraAdapter& trained);

 private:
  void Project();
  void Convolve();
  void GateOutput();

  const LayerContext& context_;
  const DecoderConfig& config_;
  const DeltaRuleShape& shape_;
  const LayerWeights& w_;
  Activations& a_;
  const Scratch& s_;
  Branch out_;
  State state_;  // empty without a pool
  // The outputs of the linears of step 2 and their gradients: two matrices in families that fuse
  // them.
  InlineList<LinearOutput, 4> in_;
  InlineList<ConstMatrixView, 4> d_in_;
};

}  // namespace qlora

#endif  // QLORA_PASS_BLOCKS_DELTA_RULE_H_
