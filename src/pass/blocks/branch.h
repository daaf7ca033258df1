// The two ends of a block: what it reads of the residual stream, and the linear whose result joins
// the stream. Both have their mirror in the backward pass.
#ifndef QLORA_PASS_BLOCKS_BRANCH_H_
#define QLORA_PASS_BLOCKS_BRANCH_H_

#include <span>

#include "model/linear_shapes.h"
#include "pass/blocks/layer_carver.h"
#include "qlora/tensor.h"

namespace qlora {

class LoraAdapter;
struct LayerContext;

// The residual stream as the linears of a block read it: normalised, in the scratch
// Activations::norm.
class BlockInput {
 public:
  // x (N, D): the stream. weight (1, D): empty without a norm. rstd (1, N) wide. wanted: the
  // gradient of x is needed. context must outlive this.
  BlockInput(const LayerContext& context, const MatrixView& x, const ConstMatrixView& weight,
             const MatrixView& rstd, bool wanted = true)
      : context_(context), x_(x), weight_(weight), rstd_(rstd), wanted_(wanted) {}

  const MatrixView& x() const { return x_; }
  // norm = RMSNorm(x), or x
  void Norm() const;
  // dx += the gradient of Norm, of d_norm, if wanted.
  void NormBackward() const;
  // The mirror of Norm and of a group of linears that reads norm, which is computed again from x.
  // dys: gradients of their outputs; us: as of BackwardGroup.
  void Backward(LinearGroup group, std::span<const ConstMatrixView> dys,
                std::span<const MatrixView> us, LoraAdapter& trained) const;

 private:
  const LayerContext& context_;
  MatrixView x_;
  ConstMatrixView weight_;
  MatrixView rstd_;
  bool wanted_;
};

// What a branch keeps; empty without post norms.
struct BranchActivations {
  MatrixView y;     // (N, D) act: output of the linear, before its norm
  MatrixView rstd;  // (1, N) wide
};
BranchActivations LayoutBranch(LayerCarver& c);

// The last linear of a block, whose result joins the residual stream, normalised first in families
// with post norms.
class Branch {
 public:
  // post_norm (1, D): empty without. u (N, R): of the linear, the only one of its group. context
  // must outlive this.
  Branch(const LayerContext& context, LinearGroup group, const BranchActivations& a,
         const ConstMatrixView& post_norm, const MatrixView& u)
      : context_(context), group_(group), a_(a), post_norm_(post_norm), u_(u) {}

  // x_out = x + [RMSNorm](input W^T)
  void Forward(const MatrixView& input, const MatrixView& x, const MatrixView& x_out) const;
  bool has_norm() const { return !post_norm_.empty(); }
  // From dx: d_input = the gradient of input. Reads the activations, which Norm computes again.
  void Backward(const ConstMatrixView& input, const MatrixView& d_input,
                LoraAdapter& trained) const;

  // Parts of these. out = RMSNorm(input W^T)
  void Norm(const MatrixView& input, const MatrixView& out) const;
  // d_y = the gradient of the linear's output, of d_out.
  void NormBackward(const ConstMatrixView& d_out, const MatrixView& d_y) const;
  // d_input = the gradient of input, of d_y.
  void LinearBackward(const ConstMatrixView& input, const ConstMatrixView& d_y,
                      const MatrixView& d_input, LoraAdapter& trained) const;

 private:
  const LayerContext& context_;
  LinearGroup group_;
  BranchActivations a_;
  ConstMatrixView post_norm_;
  MatrixView u_;
};

// x_out = x, unless they are one buffer.
void CopyResidual(const LayerContext& context, const MatrixView& x, const MatrixView& x_out);

}  // namespace qlora

#endif  // QLORA_PASS_BLOCKS_BRANCH_H_
