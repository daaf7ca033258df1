#include "pass/blocks/per_layer.h"

#include <cmath>

#include "base/matrix.h"
#include "pass/linear_group.h"

namespace qlora {
namespace {

// norm = e, as linears read it.
void CopyEmbedding(const Decoder& decoder, Activations& activations) {
  decoder.backend().Run(ops::Zero{activations.norm});
  decoder.backend().Run(ops::Add{activations.layers[0].x_in, activations.norm});
}

// RMSNorm(e Wm^T D^-1/2) is RMSNorm(e Wm^T) with an epsilon D times as large.
float Epsilon(const DecoderConfig& config) {
  return config.rms_norm_eps * static_cast<float>(config.hidden_size);
}

// Rows that were read stay in the cache of the system, and no longer count against this process:
// otherwise it would grow with every token that it has not seen before.
void ReleaseTable(const DecoderWeights& weights) {
  if (weights.reader == nullptr) return;
  for (const TensorInfo& tensor : weights.reader->tensors()) {
    if (tensor.name.ends_with("embed_tokens_per_layer.weight")) weights.reader->Release(tensor);
  }
}

// out = T[id] sqrt(P / 2), part by part, because the rows of a part count against this process
// until they are given back.
void EmbedTable(const Decoder& decoder, const PassInputs& inputs, const MatrixView& out) {
  constexpr std::int64_t kRows = 64;
  const WeightView& table = decoder.weights().per_layer_embed;
  const float scale = std::sqrt(static_cast<float>(decoder.config().per_layer_size) / 2);
  for (std::int64_t begin = 0; begin < inputs.rows; begin += kRows) {
    const std::int64_t count = std::min(kRows, inputs.rows - begin);
    const IndexView ids(inputs.per_layer_ids.data + begin, count);
    decoder.backend().Run(ops::Embed{ids, table, scale, Rows(out, begin, count)});
    ReleaseTable(decoder.weights());
  }
}

}  // namespace

PerLayerBuffers LayoutPerLayer(Carver& carver, const DecoderConfig& config,
                               const Precision& precision, std::int64_t rows, bool needs_gradient) {
  PerLayerBuffers out;
  const std::int64_t features = config.per_layer_features();
  if (features == 0) return out;
  out.inputs = carver.Matrix(precision.activation, rows, features);
  out.projected = carver.Matrix(precision.activation, rows, features);
  out.rstd = carver.Matrix(precision.wide, 1, rows * config.num_hidden_layers);
  if (needs_gradient) out.d_inputs = carver.Matrix(precision.activation, rows, features);
  return out;
}

void EmbedPerLayer(const Decoder& decoder, const PassInputs& inputs, const InputObserver* observer,
                   Activations& activations) {
  const PerLayerBuffers& b = activations.per_layer;
  if (b.inputs.empty()) return;
  Backend& backend = decoder.backend();
  const std::int64_t size = decoder.config().per_layer_size;
  // a. projected = e Wm^T + LoRA
  CopyEmbedding(decoder, activations);
  const LayerContext context{decoder, inputs, 0, nullptr, observer, activations};
  const LinearOutput projected{b.projected, activations.layers[0].u.per_layer_model[0]};
  ForwardGroup(context, LinearGroup::kPerLayerModel, activations.norm, {&projected, 1},
               Store::kSet);
  // b. p = RMSNorm(projected) 2^-1/2
  backend.Run(ops::RmsNorm{Reshape(b.projected, size), decoder.weights().per_layer_half,
                           Epsilon(decoder.config()), Reshape(b.inputs, size), b.rstd});
  // c. p = p + T[id] (P / 2)^1/2
  const MatrixView& rows = b.d_inputs.empty() ? b.projected : b.d_inputs;
  EmbedTable(decoder, inputs, rows);
  backend.Run(ops::Add{rows, b.inputs});
}

void EmbedPerLayerBackward(const Decoder& decoder, const PassInputs& inputs, bool wanted,
                           Activations& activations, LoraAdapter& trained) {
  const PerLayerBuffers& b = activations.per_layer;
  if (b.d_inputs.empty()) return;
  Backend& backend = decoder.backend();
  const std::int64_t size = decoder.config().per_layer_size;
  const MatrixView d = Reshape(b.d_inputs, size);
  // b
  backend.Run(ops::RmsNormBackward{d, Reshape(b.projected, size), decoder.weights().per_layer_half,
                                   b.rstd, d, Store::kSet});
  // a
  CopyEmbedding(decoder, activations);
  const LayerContext context{decoder, inputs, 0, nullptr, nullptr, activations};
  const ConstMatrixView dy = b.d_inputs;
  BackwardGroup(context, LinearGroup::kPerLayerModel, activations.norm, {&dy, 1},
                activations.layers[0].u.per_layer_model, wanted ? activations.d_norm : MatrixView{},
                trained);
  if (wanted) backend.Run(ops::Add{activations.d_norm, activations.dx});
}

// ---- In a layer.

void PerLayerBlock::Layout(LayerCarver& c, Activations& a) {
  if (c.config.per_layer_size == 0) return;
  a.gate = c.Act(c.rows, c.config.per_layer_size);
  a.out = LayoutBranch(c);
}

void PerLayerBlock::LayoutScratch(LayerCarver& c, Activations& a) {
  if (c.config.per_layer_size == 0) return;
  a.scratch.z = c.Act(c.rows, c.config.per_layer_size);
  if (c.training) a.scratch.d_z = c.Act(c.rows, c.config.per_layer_size);
}

PerLayerBlock::PerLayerBlock(const LayerContext& context, Activations& a)
    : context_(context),
      a_(a),
      s_(a.scratch),
      in_(context, a.x, {}, {}),
      out_(context, LinearGroup::kPerLayerOut, a.out, context.weights().per_layer_norm,
           context.u().per_layer_out[0]) {}

void PerLayerBlock::Forward(const MatrixView& x_out) {
  Project();
  Activate();
  // 13. x_out = x + RMSNorm(z Wo^T)
  out_.Forward(s_.z, a_.x, x_out);
}

void PerLayerBlock::Recompute() {
  Project();
  Activate();
  out_.Norm(s_.z, context_.buffers.norm);
}

void PerLayerBlock::Backward(LoraAdapter& trained) {
  // 13
  Activate();
  out_.Backward(s_.z, s_.d_z, trained);
  // 12. The gradient replaces gate.
  const PerLayerBuffers& all = context_.buffers.per_layer;
  context_.Run(ops::GatedActivationBackward{context_.config().hidden_act, s_.d_z, a_.gate,
                                            Part(all.inputs), a_.gate,
                                            all.d_inputs.empty() ? s_.d_z : Part(all.d_inputs)});
  // 11
  const ConstMatrixView d_gate = a_.gate;
  in_.Backward(LinearGroup::kPerLayerGate, {&d_gate, 1}, context_.u().per_layer_gate, trained);
}

MatrixView PerLayerBlock::Part(const MatrixView& all) const {
  const std::int64_t size = context_.config().per_layer_size;
  return Columns(all, context_.layer * size, size);
}

void PerLayerBlock::Project() {
  // 11. gate = x Wg^T + LoRA
  in_.Norm();
  const LinearOutput gate{a_.gate, context_.u().per_layer_gate[0]};
  ForwardGroup(context_, LinearGroup::kPerLayerGate, context_.buffers.norm, {&gate, 1},
               Store::kSet);
}

void PerLayerBlock::Activate() {
  // 12. z = act(gate) * p_l
  context_.Run(ops::GatedActivation{context_.config().hidden_act, a_.gate,
                                    Part(context_.buffers.per_layer.inputs), s_.z});
}

}  // namespace qlora
