// The steps are numbered through the blocks, and each backward function has the same steps in
// reverse. Only adapters have weight gradients.
#include "pass/layer.h"

namespace qlora {

Layer::Layer(const LayerContext& context)
    : context_(context),
      a_(context.activations()),
      in_(context_, a_.x_in, context.weights().input_norm, a_.mixer_rstd, context.trains_below),
      mid_(context_, a_.x_mid, context.weights().mlp_norm, a_.mlp_rstd),
      mixer_(context_, a_.mixer),
      mlp_(context_, a_.mlp) {
  if (!a_.per_layer.x.empty()) per_layer_.emplace(context_, a_.per_layer);
}

void Layer::ForwardMixer() {
  // 1. norm = RMSNorm(x_in)
  in_.Norm();
  // 2 to 6. x_mid = x_in + mixer(norm)
  mixer_.Forward(in_, a_.x_mid);
}

void Layer::ForwardMlp(const MatrixView& x_out) {
  // 7. norm = RMSNorm(x_mid)
  mid_.Norm();
  // 8 to 10. x = x_mid + mlp(norm)
  mlp_.Forward(mid_, per_layer_ ? per_layer_->x() : x_out);
  // 11 to 13. x_out = x + its per-layer embedding
  if (per_layer_) per_layer_->Forward(x_out);
  // 14. x_out = scale * x_out
  Scale(x_out);
}

void Layer::RecomputeMlp() {
  mid_.Norm();
  if (!per_layer_) return mlp_.Recompute(mid_);
  mlp_.Forward(mid_, per_layer_->x());
  per_layer_->Recompute();
}

void Layer::BackwardMlp(LoraAdapter& trained) {
  // 14
  Scale(context_.buffers.dx);
  // 13 to 11
  if (per_layer_) per_layer_->Backward(trained);
  // 10 to 7
  mlp_.Backward(mid_, trained);
}

void Layer::BackwardMixer(LoraAdapter& trained) {
  // 6 to 1
  mixer_.Backward(in_, trained);
}

void Layer::Scale(const MatrixView& x) {
  const ConstMatrixView& scale = context_.weights().scale;
  if (!scale.empty()) context_.Run(ops::ScaleColumns{x, scale, {}, x});
}

}  // namespace qlora
