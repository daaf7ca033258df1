#include "pass/blocks/branch.h"

#include "pass/linear_group.h"

namespace qlora {

void BlockInput::Norm() const {
  const MatrixView& norm = context_.buffers.norm;
  if (weight_.empty()) {
    context_.Run(ops::Zero{norm});
    context_.Run(ops::Add{x_, norm});
  } else {
    context_.Run(ops::RmsNorm{x_, weight_, context_.config().stream_eps(), norm, rstd_});
  }
}

void BlockInput::NormBackward() const {
  if (!wanted_) return;
  const MatrixView& d_norm = context_.buffers.d_norm;
  const MatrixView& dx = context_.buffers.dx;
  if (weight_.empty()) {
    context_.Run(ops::Add{d_norm, dx});
  } else {
    context_.Run(ops::RmsNormBackward{d_norm, x_, weight_, rstd_, dx, Store::kAdd});
  }
}

void BlockInput::Backward(LinearGroup group, std::span<const ConstMatrixView> dys,
                          std::span<const MatrixView> us, LoraAdapter& trained) const {
  Norm();
  BackwardGroup(context_, group, context_.buffers.norm, dys, us,
                wanted_ ? context_.buffers.d_norm : MatrixView{}, trained);
  NormBackward();
}

BranchActivations LayoutBranch(LayerCarver& c) {
  if (!c.config.post_norms) return {};
  return {c.Act(c.rows, c.config.hidden_size), c.Wide(1, c.rows)};
}

void Branch::Forward(const MatrixView& input, const MatrixView& x, const MatrixView& x_out) const {
  if (post_norm_.empty()) {
    const LinearOutput out{x_out, u_, context_.buffers.keeps_stream ? x : MatrixView{}};
    ForwardGroup(context_, group_, input, {&out, 1}, Store::kAdd);
  } else {
    CopyResidual(context_, x, x_out);
    Norm(input, context_.buffers.norm);
    context_.Run(ops::Add{context_.buffers.norm, x_out});
  }
}

void Branch::Backward(const ConstMatrixView& input, const MatrixView& d_input,
                      LoraAdapter& trained) const {
  const Activations& shared = context_.buffers;
  if (!post_norm_.empty()) NormBackward(shared.dx, shared.d_norm);
  LinearBackward(input, post_norm_.empty() ? shared.dx : shared.d_norm, d_input, trained);
}

void Branch::Norm(const MatrixView& input, const MatrixView& out) const {
  const LinearOutput y{a_.y, u_};
  ForwardGroup(context_, group_, input, {&y, 1}, Store::kSet);
  context_.Run(ops::RmsNorm{a_.y, post_norm_, context_.config().rms_norm_eps, out, a_.rstd});
}

void Branch::NormBackward(const ConstMatrixView& d_out, const MatrixView& d_y) const {
  context_.Run(ops::RmsNormBackward{d_out, a_.y, post_norm_, a_.rstd, d_y, Store::kSet});
}

void Branch::LinearBackward(const ConstMatrixView& input, const ConstMatrixView& d_y,
                            const MatrixView& d_input, LoraAdapter& trained) const {
  BackwardGroup(context_, group_, input, {&d_y, 1}, {&u_, 1}, d_input, trained);
}

void CopyResidual(const LayerContext& context, const MatrixView& x, const MatrixView& x_out) {
  if (context.buffers.keeps_stream) context.Run(ops::Copy{x, x_out});
}

}  // namespace qlora
