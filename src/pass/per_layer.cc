// The steps of per-layer embeddings; those inside of a layer continue the numbers of layer.cc.
#include "pass/per_layer.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "base/matrix.h"
#include "pass/layer.h"
#include "pass/linear_group.h"

namespace qlora {
namespace {

bool IsAdapted(const LoraAdapter& adapter) {
  const PerLinear<LoraLinear>& first = adapter.layers().front();
  return !first.per_layer_model.empty() && first.per_layer_model[0].rank > 0;
}

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

// out = T[id] sqrt(P / 2), part by part: a device is given rows of the table, and the host gives
// those back that it has read.
void EmbedTable(const Decoder& decoder, const PassInputs& inputs, const MatrixView& room,
                const MatrixView& out) {
  Backend& backend = decoder.backend();
  const WeightView& table = decoder.weights().per_layer_embed;
  const float scale = std::sqrt(static_cast<float>(decoder.config().per_layer_size) / 2);
  if (inputs.per_layer_host_ids.empty()) {
    for (std::int64_t begin = 0; begin < inputs.rows; begin += kPerLayerRows) {
      const std::int64_t count = std::min(kPerLayerRows, inputs.rows - begin);
      backend.Run(ops::Embed{
          {inputs.per_layer_ids.data + begin, count}, table, scale, Rows(out, begin, count)});
      ReleaseTable(decoder.weights());
    }
    return;
  }
  const DType dtype = table.dense.dtype;
  const std::size_t row_bytes = BytesOf(dtype, table.cols());
  QLORA_DCHECK(BytesOf(dtype, 1) <= BytesOf(room.dtype, 1));
  std::vector<std::byte> host(room.rows * row_bytes);
  for (std::int64_t begin = 0; begin < inputs.rows; begin += room.rows) {
    const std::int64_t count = std::min(room.rows, inputs.rows - begin);
    for (std::int64_t n = 0; n < count; ++n) {
      const std::int64_t id = inputs.per_layer_host_ids[begin + n];
      std::memcpy(host.data() + n * row_bytes, Rows(table.dense, id, 1).data, row_bytes);
    }
    backend.memory().Upload(host.data(), room.data, count * row_bytes);
    ReleaseTable(decoder.weights());
    const MatrixView part{room.data, dtype, count, table.cols(), table.cols()};
    backend.Run(ops::Embed{
        {inputs.per_layer_ids.data + begin, count}, part, scale, Rows(out, begin, count)});
  }
}

}  // namespace

PerLayerBuffers LayoutPerLayer(Carver& carver, const DecoderConfig& config,
                               const Adapters& adapters, const Precision& precision,
                               std::int64_t rows, bool training) {
  PerLayerBuffers out;
  const std::int64_t features = config.per_layer_features();
  if (features == 0) return out;
  out.inputs = carver.Matrix(precision.activation, rows, features);
  out.projected = carver.Matrix(precision.activation, rows, features);
  out.rstd = carver.Matrix(precision.wide, 1, rows * config.num_hidden_layers);
  out.table = carver.Matrix(precision.wide, std::min(rows, kPerLayerRows), features);
  const bool needs_gradient = std::ranges::any_of(adapters, [](const LoraAdapter* adapter) {
    return adapter->embedding() != nullptr || IsAdapted(*adapter);
  });
  if (training && needs_gradient) {
    out.d_inputs = carver.Matrix(precision.activation, rows, features);
  }
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
  const LayerContext context{decoder, inputs, 0, observer, activations};
  const LinearOutput projected{b.projected, activations.layers[0].u.per_layer_model[0]};
  ForwardGroup(context, LinearGroup::kPerLayerModel, activations.norm, {&projected, 1},
               Store::kSet);
  // b. p = RMSNorm(projected) 2^-1/2
  backend.Run(ops::RmsNorm{Reshape(b.projected, size), decoder.weights().per_layer_half,
                           Epsilon(decoder.config()), Reshape(b.inputs, size), b.rstd});
  // c. p = p + T[id] (P / 2)^1/2
  const MatrixView& rows = b.d_inputs.empty() ? b.projected : b.d_inputs;
  EmbedTable(decoder, inputs, b.table, rows);
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
  const LayerContext context{decoder, inputs, 0, nullptr, activations};
  const ConstMatrixView dy = b.d_inputs;
  BackwardGroup(context, LinearGroup::kPerLayerModel, activations.norm, {&dy, 1},
                activations.layers[0].u.per_layer_model, wanted ? activations.d_norm : MatrixView{},
                trained);
  if (wanted) backend.Run(ops::Add{activations.d_norm, activations.dx});
}

// ---- In a layer.

MatrixView Layer::PerLayerInput(const MatrixView& all) const {
  return Columns(all, context_.layer * config_.per_layer_size, config_.per_layer_size);
}

void Layer::GatePerLayer() {
  // 11. gate = x Wg^T + LoRA
  Norm(a_.per_layer.x, {}, {});
  const LinearOutput gate{a_.per_layer.gate, a_.u.per_layer_gate[0]};
  ForwardGroup(context_, LinearGroup::kPerLayerGate, shared_.norm, {&gate, 1}, Store::kSet);
}

void Layer::ActivatePerLayer() {
  // 12. z = act(gate) * p_l
  Run(ops::GatedActivation{config_.hidden_act, a_.per_layer.gate,
                           PerLayerInput(shared_.per_layer.inputs), a_.scratch.per_layer.z});
}

void Layer::ForwardPerLayer(const MatrixView& x_out) {
  GatePerLayer();
  ActivatePerLayer();
  // 13. x_out = x + RMSNorm(z Wo^T)
  AddBranch(per_layer_, a_.scratch.per_layer.z, a_.per_layer.x, x_out);
}

void Layer::RecomputePerLayer() {
  GatePerLayer();
  ActivatePerLayer();
  NormBranch(per_layer_, a_.scratch.per_layer.z);
}

void Layer::BackwardPerLayer(LoraAdapter& trained) {
  const PerLayerScratch& s = a_.scratch.per_layer;
  // 13
  ActivatePerLayer();
  BranchBackward(per_layer_, s.z, s.d_z, trained);
  // 12. The gradient replaces gate.
  const MatrixView& d_inputs = shared_.per_layer.d_inputs;
  Run(ops::GatedActivationBackward{config_.hidden_act, s.d_z, a_.per_layer.gate,
                                   PerLayerInput(shared_.per_layer.inputs), a_.per_layer.gate,
                                   d_inputs.empty() ? s.d_z : PerLayerInput(d_inputs)});
  // 11
  Norm(a_.per_layer.x, {}, {});
  const ConstMatrixView d_gate = a_.per_layer.gate;
  BackwardGroup(context_, LinearGroup::kPerLayerGate, shared_.norm, {&d_gate, 1},
                a_.u.per_layer_gate, shared_.d_norm, trained);
  NormBackward(a_.per_layer.x, {}, {});
}

}  // namespace qlora
