// One layer of one pass: its steps forward, and the same steps backward.
//
// layer.cc numbers the steps of the forward pass; each backward function has the same numbers in
// reverse. The gradient of the residual stream stays in one buffer, Activations::dx, to which every
// step adds. The constructor chooses all views, so that steps have no cases for the state of a
// sequence or for families that fuse linears.
//
// Steps 2 to 5 mix tokens, and differ: attention is in layer.cc, the gated delta rule in
// delta_rule.cc, the short convolution in short_conv.cc. Steps 8 to 10 are an MLP (layer.cc) or
// experts (experts.cc, shared_expert.cc), or both (side_experts.cc); 11 to 13, a per-layer
// embedding, are in per_layer.cc.
//
// Each layer has a value for the activations that its backward pass computes again (Recompute in
// activations.h) and for the place of its input, which waits in host memory on a small card. The
// gradients are the same bits in each case.
#ifndef QLORA_PASS_LAYER_H_
#define QLORA_PASS_LAYER_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "pass/decoder.h"
#include "pass/linear_group.h"
#include "pass/sequence_state.h"

namespace qlora {

class Layer {
 public:
  // observer: may be null. state: may be null; the pass goes on from the state of the sequence, and
  // leaves there that of its last token. Everything must outlive this.
  Layer(const Decoder& decoder, const PassInputs& inputs, std::int64_t layer, SequenceState* state,
        const InputObserver* observer, Activations& activations);

  void ForwardMixer();
  // x_out (N, D): the residual stream after the layer.
  void ForwardMlp(const MatrixView& x_out);
  // Computes again the activations of ForwardMlp that BackwardMlp reads.
  void RecomputeMlp();
  void BackwardMlp(LoraAdapter& trained);
  // wanted: the gradient below this layer is needed.
  void BackwardMixer(LoraAdapter& trained, bool wanted);

 private:
  // The operands of up to four linears that share an input.
  template <typename T>
  class InlineList {
   public:
    InlineList() = default;
    InlineList(std::initializer_list<T> some) : count_(some.size()) {
      std::copy(some.begin(), some.end(), all_.begin());
    }
    operator std::span<const T>() const { return std::span(all_).first(count_); }

   private:
    std::array<T, 4> all_;
    std::size_t count_ = 0;
  };
  // A linear whose result joins the residual stream, normalised first in families with post norms.
  struct Branch {
    LinearGroup group;
    MatrixView y;  // (N, D): the result; empty without post norms
    ConstMatrixView post_norm;
    MatrixView rstd;
    MatrixView u;

    bool is_normalized() const { return !post_norm.empty(); }
  };

  template <typename AnyOp>
  void Run(const AnyOp& op) {
    context_.backend().Run(op);
  }
  // shared_.norm = RMSNorm(x), or x without a weight.
  void Norm(const MatrixView& x, const ConstMatrixView& weight, const MatrixView& rstd);
  // dx += the gradient of Norm, of d_norm.
  void NormBackward(const MatrixView& x, const ConstMatrixView& weight, const MatrixView& rstd);
  // Chooses the views of a mixer.
  void BindAttention(const SequenceState* state);
  void BindDeltaRule();
  void BindShortConv();
  // Steps 2 to 5: mixed_ = mixer(shared_.norm)
  void Attend();
  void RunDeltaRule();
  void RunShortConv();
  // Computes mixed_ again, where it is not kept, from the activations of steps 2 to 5.
  void Remix();
  void RemixDeltaRule();
  void RemixShortConv();
  // From d_mixed_ to d_qkv_: steps 5 to 3.
  void AttendBackward();
  void DeltaRuleBackward();
  void ShortConvBackward();
  void ConvolveDeltaInputs();
  void GateDeltaOutput();
  void ConvolveShort();
  void GateAttention();
  void ProjectQkv();
  // Values before their norm.
  const MatrixView& values() const { return sizes_.k_is_v ? a_.k_pre : a_.v_pre; }
  bool has_qk_norm() const { return config_.qk_norm != QkNorm::kNone; }
  void NormAndRotate();
  void NormAndRotateBackward();
  void NormHeads();
  void NormHeadsBackward();
  void Rotate(const MatrixView& q, const MatrixView& k, bool inverse);
  void RotateHeads(const MatrixView& x, int rope, std::int64_t heads, bool inverse);
  // norm = RMSNorm(input W^T)
  void NormBranch(const Branch& branch, const MatrixView& input);
  // x_out = x, unless they are one buffer.
  void CopyResidual(const MatrixView& x, const MatrixView& x_out);
  // x_out = x + branch(input)
  void AddBranch(const Branch& branch, const MatrixView& input, const MatrixView& x,
                 const MatrixView& x_out);
  void BranchBackward(const Branch& branch, const ConstMatrixView& input, const MatrixView& d_input,
                      LoraAdapter& trained);
  void Activate();
  void RecomputeDenseMlp();
  void BackwardDenseMlp(LoraAdapter& trained);
  // Steps 9 to 7: from d_act.
  void BackwardGates(LoraAdapter& trained);
  // Steps 10a to 10f of experts beside the MLP, and their mirror (side_experts.cc).
  bool has_side_experts() const { return config_.side_moe.num_experts > 0; }
  void ForwardSide();
  // x_mlp = x_mid + that
  void AddSide(const MatrixView& x_mlp);
  void GatherSlots();
  void ActivateSide();
  void BackwardSide(LoraAdapter& trained);
  void BackwardSideExperts(LoraAdapter& trained);
  void BackwardSideRouter(LoraAdapter& trained);
  // Steps 8 to 10 of a mixture of experts, and their mirror (experts.cc).
  void ProjectExperts();
  void ForwardExperts(const MatrixView& x_out);
  void BackwardExperts(LoraAdapter& trained);
  // Those of an expert of all tokens (shared_expert.cc).
  bool has_shared_expert() const { return !w_.linears.shared_in.empty(); }
  void ProjectSharedExpert();
  void ActivateSharedExpert();
  void ForwardSharedExpert(const MatrixView& x_out);
  void SharedExpertBackward(LoraAdapter& trained);
  // Steps 11 to 13 of per-layer embeddings, and their mirror (per_layer.cc).
  bool has_per_layer() const { return config_.per_layer_size > 0; }
  // The columns of this layer.
  MatrixView PerLayerInput(const MatrixView& all) const;
  void GatePerLayer();
  void ActivatePerLayer();
  void ForwardPerLayer(const MatrixView& x_out);
  void RecomputePerLayer();
  void BackwardPerLayer(LoraAdapter& trained);

  LayerActivations& a_;
  Activations& shared_;
  LayerContext context_;
  const LayerWeights& w_;
  const DecoderConfig& config_;
  LayerConfig sizes_;
  AttentionShape shape_;
  Branch o_;
  Branch down_;
  Branch per_layer_;
  // The output of the mixer, which step 6 reads.
  MatrixView mixed_, d_mixed_;
  // The state of the sequence, which the other mixers go on from and change; empty without.
  MatrixView window_, delta_;
  bool begins_ = false;  // a new sequence, whose state is zero
  // The keys and values that this pass writes, here or in the layer that this one reads them from,
  // and all keys and values that attention reads: activations, or rows of the state.
  MatrixView k_, v_;          // (N, G*K)
  MatrixView all_k_, all_v_;  // (M, G*K)
  // Query and gate of each head (N*H, K): columns of one matrix where outputs have a gate.
  MatrixView q_heads_, d_q_heads_, gate_heads_, d_gate_heads_;
  // The outputs of the linears of steps 2 and 8 and their gradients: one matrix in families that
  // fuse them. A state needs k and v apart, so that a fused product is copied to it.
  InlineList<LinearOutput> qkv_, gate_up_;
  InlineList<ConstMatrixView> d_qkv_, d_gate_up_;
  bool copies_k_v_ = false;
};

}  // namespace qlora

#endif  // QLORA_PASS_LAYER_H_
