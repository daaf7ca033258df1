// The MLP that all tokens have, act(x Wg^T) * (x Wu^T) Wd^T (Shazeer, arXiv:2002.05202). Steps 8 to
// 10 of a layer; dense_mlp.cc has them, and their mirror beneath.
#ifndef QLORA_PASS_BLOCKS_DENSE_MLP_H_
#define QLORA_PASS_BLOCKS_DENSE_MLP_H_

#include "backend/backend.h"
#include "pass/blocks/branch.h"
#include "pass/blocks/inline_list.h"
#include "pass/blocks/layer_carver.h"

namespace qlora {

class DenseMlp {
 public:
  // In memory that all layers share.
  struct Scratch {
    MatrixView act;    // (N, F) act: act(gate) * up
    MatrixView d_act;  // (N, F) act: gradient of `act`; backward only
  };
  struct Activations {
    using Block = DenseMlp;
    MatrixView gate_up;  // (N, 2F) act: gate and up are its columns; empty where they are apart
    MatrixView gate;     // (N, F) act; the backward pass leaves its gradient here
    MatrixView up;       // (N, F) act; likewise
    BranchActivations down;
    Scratch scratch;
  };
  static void Layout(LayerCarver& c, Activations& a);
  static void LayoutScratch(LayerCarver& c, Activations& a);

  DenseMlp(const LayerContext& context, Activations& a);

  // x_out = in.x + mlp(norm)
  void Forward(const BlockInput& in, const MatrixView& x_out);
  // Computes again what Backward reads.
  void Recompute(const BlockInput& in);
  void Backward(const BlockInput& in, LoraAdapter& trained);

  // The same in a block that has more than this: the output has the norm `weight` and goes to
  // `out`; its gradient is d_out, and d_y (N, D) is room for that of the last linear's.
  DenseMlp(const LayerContext& context, Activations& a, const ConstMatrixView& weight);
  void ForwardTo(const MatrixView& out);
  void BackwardFrom(const ConstMatrixView& d_out, const MatrixView& d_y, const BlockInput& in,
                    LoraAdapter& trained);

 private:
  void Project();
  void Activate();
  // Steps 9 to 7, from d_act.
  void GatesBackward(const BlockInput& in, LoraAdapter& trained);

  const LayerContext& context_;
  Activations& a_;
  const Scratch& s_;
  Branch down_;
  // The outputs of the linears of step 8, in whose place their gradients come: one matrix in
  // families that fuse them.
  InlineList<LinearOutput, 2> gate_up_;
  InlineList<ConstMatrixView, 2> d_gate_up_;
};

}  // namespace qlora

#endif  // QLORA_PASS_BLOCKS_DENSE_MLP_H_
