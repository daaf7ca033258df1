// The short convolution between two gates that LFM2 has in the place of attention in most layers:
// steps 2 to 5 of layer.cc. Forward, then the same steps in reverse.
#include "pass/short_conv.h"

#include "pass/layer.h"

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

ShortConvActivations LayoutShortConv(Carver& carver, const DecoderConfig& config,
                                     const Precision& precision, std::int64_t rows) {
  return {carver.Matrix(precision.activation, rows, 3 * config.hidden_size)};
}

ShortConvScratch LayoutShortConvScratch(Carver& carver, const DecoderConfig& config,
                                        const Precision& precision, std::int64_t rows,
                                        bool training) {
  const auto act = [&](std::int64_t cols) {
    return carver.Matrix(precision.activation, rows, cols);
  };
  const std::int64_t d = config.hidden_size;
  ShortConvScratch out;
  out.bx = act(d);
  out.conv = act(d);
  out.gated = act(d);
  if (!training) return out;
  out.d_gated = act(d);
  out.d_in = act(3 * d);
  return out;
}

void Layer::BindShortConv() {
  qkv_ = {{a_.short_conv.in, a_.u.qkv[0]}};
  d_qkv_ = {a_.scratch.short_conv.d_in};
  mixed_ = a_.scratch.short_conv.gated;
  d_mixed_ = a_.scratch.short_conv.d_gated;
}

void Layer::RunShortConv() {
  // 2. b, c, x = norm W^T + LoRA
  ForwardGroup(context_, LinearGroup::kQkv, shared_.norm, qkv_, Store::kSet);
  ConvolveShort();
}

void Layer::RemixShortConv() { ConvolveShort(); }

void Layer::ConvolveShort() {
  const ShortConvInputs in(a_.short_conv.in);
  const ShortConvScratch& s = a_.scratch.short_conv;
  // 3. bx = b * x
  Run(ops::GatedActivation{Activation::kIdentity, in.b, in.x, s.bx});
  // 4. conv = the convolution of bx
  Run(ops::CausalConv{Activation::kIdentity, context_.inputs.parts, s.bx, w_.conv.weight,
                      w_.conv.bias, s.conv, window_});
  // 5. gated = c * conv
  Run(ops::GatedActivation{Activation::kIdentity, in.c, s.conv, s.gated});
}

void Layer::ShortConvBackward() {
  const ShortConvInputs in(a_.short_conv.in);
  const ShortConvInputs d_in(a_.scratch.short_conv.d_in);
  const ShortConvScratch& s = a_.scratch.short_conv;
  // 5. d_gated becomes the gradient of conv.
  Run(ops::GatedActivationBackward{Activation::kIdentity, s.d_gated, in.c, s.conv, d_in.c,
                                   s.d_gated});
  // 4. The gradient of bx takes the place of conv: bx is an operand.
  Run(ops::CausalConvBackward{Activation::kIdentity, context_.inputs.parts, s.d_gated, s.bx,
                              w_.conv.weight, w_.conv.bias, s.conv});
  // 3
  Run(ops::GatedActivationBackward{Activation::kIdentity, s.conv, in.b, in.x, d_in.b, d_in.x});
}

}  // namespace qlora
