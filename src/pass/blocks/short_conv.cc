#include "pass/blocks/short_conv.h"

#include "base/matrix.h"
#include "pass/blocks/unfold.h"
#include "pass/linear_group.h"

namespace qlora {
namespace {

// The columns of the first linear's output.
struct ShortConvInputs {
  explicit ShortConvInputs(const MatrixView& in)
      : b(Columns(in, 0, in.cols / 3)),
        c(Columns(in, b.cols, b.cols)),
        x(Columns(in, 2 * b.cols, b.cols)) {}

  MatrixView b, c, x;  // (N, D)
};

}  // namespace

void ShortConvMixer::Layout(LayerCarver& c, Activations& a) {
  a.in = c.Act(c.rows, 3 * c.config.hidden_size);
  a.out = LayoutBranch(c);
}

void ShortConvMixer::LayoutScratch(LayerCarver& c, Activations& a) {
  Scratch& s = a.scratch;
  const std::int64_t d = c.config.hidden_size;
  s.bx = c.Act(c.rows, d);
  s.conv = c.Act(c.rows, d);
  s.gated = c.Act(c.rows, d);
  if (c.unfolded > 0) {
    s.all_bx = c.Act(c.unfolded, d);
    s.all_conv = c.Act(c.unfolded, d);
    if (c.training) s.d_all_conv = c.Act(c.unfolded, d);
  }
  if (!c.training) return;
  s.d_gated = c.Act(c.rows, d);
  s.d_in = c.Act(c.rows, 3 * d);
}

ShortConvMixer::State ShortConvMixer::LayoutState(LayerCarver& c, std::int64_t slots) {
  return {c.Windows(slots, c.config.hidden_size)};
}

ShortConvMixer::ShortConvMixer(const LayerContext& context, Activations& a)
    : context_(context),
      w_(context.weights()),
      a_(a),
      s_(a.scratch),
      out_(context, LinearGroup::kO, a.out, w_.post_attn_norm, context.u().o) {
  if (context.pool != nullptr) state_ = std::get<State>(context.pool->layers[context.layer]);
}

void ShortConvMixer::Forward(const BlockInput& in, const MatrixView& x_out) {
  context_.ClearNewSlots(state_.window);
  // 2. b, c, x = norm W^T + LoRA
  const LinearOutput projected{a_.in, context_.u().qkv[0]};
  ForwardGroup(context_, LinearGroup::kQkv, context_.buffers.norm, {&projected, 1}, Store::kSet);
  Convolve();
  // 6. x_out = x + [RMSNorm](gated Wo^T)
  out_.Forward(s_.gated, in.x(), x_out);
}

void ShortConvMixer::Convolve() {
  const ShortConvInputs in(a_.in);
  // 3. bx = b * x
  context_.Run(ops::GatedActivation{Activation::kIdentity, in.b, in.x, s_.bx});
  // 4. conv = the convolution of bx
  const MatrixView bx = WholeOf(context_, s_.bx, s_.all_bx);
  const MatrixView conv = WholeOf(context_, s_.conv, s_.all_conv);
  Unfold(context_, s_.bx, bx);
  context_.Run(ops::CausalConv{Activation::kIdentity, context_.inputs.parts, bx, w_.conv.weight,
                               w_.conv.bias, conv, state_.window});
  TakeOwn(context_, conv, s_.conv);
  // 5. gated = c * conv
  context_.Run(ops::GatedActivation{Activation::kIdentity, in.c, s_.conv, s_.gated});
}

void ShortConvMixer::Backward(const BlockInput& in, LoraAdapter& trained) {
  const ShortConvInputs inputs(a_.in);
  const ShortConvInputs d_inputs(s_.d_in);
  // 6; steps 3 to 5 are computed again.
  Convolve();
  out_.Backward(s_.gated, s_.d_gated, trained);
  // 5. d_gated becomes the gradient of conv.
  context_.Run(ops::GatedActivationBackward{Activation::kIdentity, s_.d_gated, inputs.c, s_.conv,
                                            d_inputs.c, s_.d_gated});
  // 4. The gradient of bx takes the place of conv: bx is an operand.
  const MatrixView bx = WholeOf(context_, s_.bx, s_.all_bx);
  const MatrixView d_conv = WholeOf(context_, s_.d_gated, s_.d_all_conv);
  const MatrixView d_bx = WholeOf(context_, s_.conv, s_.all_conv);
  GiveOwn(context_, s_.d_gated, d_conv);
  context_.Run(ops::CausalConvBackward{Activation::kIdentity, context_.inputs.parts, d_conv, bx,
                                       w_.conv.weight, w_.conv.bias, d_bx});
  Fold(context_, d_bx, s_.conv);
  // 3
  context_.Run(ops::GatedActivationBackward{Activation::kIdentity, s_.conv, inputs.b, inputs.x,
                                            d_inputs.b, d_inputs.x});
  // 2, 1
  const ConstMatrixView d_in = s_.d_in;
  in.Backward(LinearGroup::kQkv, {&d_in, 1}, context_.u().qkv, trained);
}

}  // namespace qlora
