// The MLP with experts beside it of Gemma 4's 26B-A4B, and their router:
//
//   f = RMSNorm(MLP(RMSNorm(x))) + RMSNorm(the sum over a token's experts of g Expert(RMSNorm(x)))
//
// joins the residual stream as RMSNorm(f). Each RMSNorm has its own weight. The router reads
// RMSNorm(x) of one more; g is the softmax over the chosen experts' logits, times a number of each
// expert. An expert is one linear for gate and up, and one for down. Step 10 of a layer becomes 10a
// to 10f; side_mlp.cc has them, and their mirror beneath.
#ifndef QLORA_PASS_BLOCKS_SIDE_MLP_H_
#define QLORA_PASS_BLOCKS_SIDE_MLP_H_

#include "backend/backend.h"
#include "pass/blocks/branch.h"
#include "pass/blocks/dense_mlp.h"
#include "pass/blocks/expert_slots.h"
#include "pass/blocks/layer_carver.h"

namespace qlora {

struct LayerWeights;

class SideMlp {
 public:
  // In memory that all layers share. S is N * k, M the width of an expert.
  struct Scratch {
    MatrixView pairs;  // (N, k) wide: weights of pairs times their scales
    MatrixView act;    // (S, M) act: weight * act(gate) * up
    // Backward only.
    MatrixView d_dense;  // (N, D) act
    MatrixView d_sum;    // (N, D) act
    MatrixView d_act;    // (S, M) act
  };
  struct Activations {
    using Block = SideMlp;
    DenseMlp::Activations dense;
    ExpertSlots slots;
    MatrixView router_rstd;  // (1, N) wide
    MatrixView pair_scales;  // (N, k) wide: the number of the expert of each pair
    MatrixView rstd;         // (1, N) wide: of the norm before the experts
    MatrixView gate_up;      // (S, 2M) act; the backward pass leaves its gradient here
    MatrixView sum;          // (N, D) wide: output of the experts before its norm
    MatrixView sum_rstd;     // (1, N) wide
    BranchActivations f;
    Scratch scratch;
  };
  static void Layout(LayerCarver& c, Activations& a);
  static void LayoutScratch(LayerCarver& c, Activations& a);

  SideMlp(const LayerContext& context, Activations& a);

  // x_out = in.x + RMSNorm(f)
  void Forward(const BlockInput& in, const MatrixView& x_out);
  // Computes again what Backward reads.
  void Recompute(const BlockInput& in);
  void Backward(const BlockInput& in, LoraAdapter& trained);

 private:
  void Route(const BlockInput& in);
  void RunExperts(const BlockInput& in);
  void GatherSlots(const BlockInput& in);
  void Activate();
  void ExpertsBackward(const BlockInput& in, LoraAdapter& trained);
  void RouterBackward(const BlockInput& in, LoraAdapter& trained);

  const LayerContext& context_;
  const DecoderConfig& config_;
  const LayerWeights& w_;
  Activations& a_;
  const Scratch& s_;
  const ExpertBuffers& b_;
  DenseMlp dense_;
};

}  // namespace qlora

#endif  // QLORA_PASS_BLOCKS_SIDE_MLP_H_
