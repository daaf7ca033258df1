// Attention (Vaswani et al., arXiv:1706.03762) with grouped queries, rotary positions and what
// families add to it: norms of heads, windows, sinks, a gate of the output, keys and values of
// another layer. Steps 2 to 6 of a layer; attention.cc has them, and their mirror beneath.
#ifndef QLORA_PASS_BLOCKS_ATTENTION_H_
#define QLORA_PASS_BLOCKS_ATTENTION_H_

#include "backend/backend.h"
#include "pass/blocks/branch.h"
#include "pass/blocks/inline_list.h"
#include "pass/blocks/layer_carver.h"

namespace qlora {

struct LayerWeights;

class AttentionMixer {
 public:
  // In memory that all layers share.
  struct Scratch {
    MatrixView gated;  // (N, H*K) act: `attn` times sigmoid(gate); empty without gates
    // Keys and values of M unfolded rows; empty without prefixes.
    MatrixView k, v;              // (M, G*K) act
    MatrixView d_all_k, d_all_v;  // (M, G*K) act: backward only
    // Backward only.
    MatrixView d_attn;    // (N, H*K) act: gradient of `attn`, or of `gated`, then of `attn`
    MatrixView d_qkv;     // (N, (H+2G)K) act: only where the family fuses q, k and v
    MatrixView d_q;       // (N, H*K) act
    MatrixView d_k;       // (N, G*K) act
    MatrixView d_v;       // (N, G*K) act
    MatrixView d_q_gate;  // (N, 2*H*K) act: gradient of `q_gate`; only with it
  };
  struct Activations {
    using Block = AttentionMixer;
    MatrixView qkv;     // (N, (H+2G)K) act: q, k and v are its columns; empty where they are apart
    MatrixView q_gate;  // (N, 2*H*K) act: query and gate of each head; only with kFull
    MatrixView gate;    // (N, H) act: only with kHeads; the backward pass leaves its gradient here
    MatrixView q_pre;   // (N, H*K) act: before the head norm; empty without norms of heads
    MatrixView k_pre;   // (N, G*K) act
    MatrixView v_pre;   // (N, G*K) act: before the norm of values; empty without, or where it is
                        // k_pre
    MatrixView q_rstd;  // (1, N*H) wide
    MatrixView k_rstd;  // (1, N*G) wide
    MatrixView v_rstd;  // (1, N*G) wide; empty without norm of values
    MatrixView q;       // (N, H*K) act: after head norm and RoPE
    // Layers that attend to the keys and values of another have none of their own. Those of which
    // others read keys and values keep them for the whole pass.
    MatrixView k;  // (N, G*K) act: after head norm and RoPE
    MatrixView v;  // (N, G*K) act: after the norm of values
    // Backward only, of layers of which others read keys and values: what those add.
    MatrixView d_k_others;  // (N, G*K) wide
    MatrixView d_v_others;  // (N, G*K) wide
    MatrixView attn;        // (N, H*K) act: output of the softmax
    MatrixView lse;         // (N, H) wide
    BranchActivations o;
    Scratch scratch;
  };
  // The keys and values of all tokens; empty in layers that read those of another.
  struct State {
    MatrixView k;  // (slots * capacity, G*K) act
    MatrixView v;  // (slots * capacity, G*K) act
  };
  static constexpr std::int64_t kPromptPart = 1;
  // Keys and values that other layers read: they live as long as the pass, and come before Layout.
  static void LayoutShared(LayerCarver& c, Activations& a);
  static void Layout(LayerCarver& c, Activations& a);
  static void LayoutScratch(LayerCarver& c, Activations& a);
  static State LayoutState(LayerCarver& c, std::int64_t slots);
  // Before the backward pass, of layers of which others read keys and values.
  static void ZeroShared(Backend& backend, Activations& a);

  AttentionMixer(const LayerContext& context, Activations& a);

  // x_out = in.x + mixer(norm)
  void Forward(const BlockInput& in, const MatrixView& x_out);
  void Backward(const BlockInput& in, LoraAdapter& trained);

 private:
  // q, k and v: three matrices, or columns of one.
  static void LayoutQkv(LayerCarver& c, MatrixView& qkv, MatrixView& q, MatrixView& k,
                        MatrixView& v);
  void BindKeys();
  void BindHeads();
  void BindLinears();
  bool has_qk_norm() const { return config_.qk_norm != QkNorm::kNone; }
  // Values before their norm.
  const MatrixView& values() const { return sizes_.k_is_v ? a_.k_pre : a_.v_pre; }
  void Project();
  void NormAndRotate();
  void NormAndRotateBackward();
  void NormHeads();
  void NormHeadsBackward();
  void Rotate(const MatrixView& q, const MatrixView& k, bool inverse);
  void RotateHeads(const MatrixView& x, int rope, std::int64_t heads, bool inverse);
  // Puts the keys and values of this pass where attention reads them.
  void PlaceKeys();
  void Gate();
  void GateBackward();
  // Adds the gradients of keys and values to those of the layer that they are of, or takes those
  // that other layers added.
  void ShareGradients();

  const LayerContext& context_;
  const DecoderConfig& config_;
  const LayerConfig sizes_;
  const AttentionShape shape_;
  const LayerWeights& w_;
  Activations& a_;
  // Of the layer that keys and values are of: this one, or an earlier one.
  Activations& owner_;
  const Scratch& s_;
  Branch o_;
  // The input of the last linear: attn, or that times the gate.
  MatrixView mixed_;
  // The keys and values that attention reads: those of the pass, unfolded ones, or those of a pool.
  MatrixView all_k_, all_v_;  // (M, G*K)
  // Query and gate of each head (N*H, K): columns of one matrix with OutputGate::kFull.
  MatrixView q_heads_, d_q_heads_, gate_heads_, d_gate_heads_;
  // The outputs of the linears of step 2 and their gradients: one matrix in families that fuse
  // them.
  InlineList<LinearOutput, 4> qkv_;
  InlineList<ConstMatrixView, 4> d_qkv_;
};

}  // namespace qlora

#endif  // QLORA_PASS_BLOCKS_ATTENTION_H_
