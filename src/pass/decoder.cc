// The passes over all layers; layer.cc has the steps of one.
//
//   forward    ids -> Embed -> layers[0].x_in -> layer 0 -> layers[1].x_in -> ... -> x_out
//   backward   ids <- EmbedBackward <- dx     <- layer 0 <- dx             <- ... <- dx (loss.cc)
//
// A stage of a pipeline runs its own layers. What lies before them and behind them is the work of
// other stages, which bring the x_in of the first of its layers and the dx of the last.
//
// Every layer keeps its input x_in, on the device or in host memory, from which the backward pass
// recomputes the activations that the forward pass did not keep. There is one dx: each layer adds
// the gradients of its blocks to it.
#include "pass/decoder.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "pass/layer.h"
#include "pass/neftune.h"
#include "pass/sequence_state.h"

namespace qlora {
namespace {

// The token embedding of the base as Embed reads it. A table in host memory stays there, and its
// rows are uploaded to the scratch of norms, which is free before the first layer: row n belongs to
// token n of the pass.
WeightView GatherEmbedding(const Decoder& decoder, const PassInputs& inputs,
                           Activations& activations) {
  constexpr std::int64_t kPiece = 512;  // rows that are gathered while the rows before are copied
  if (!decoder.weights().host_embedding) return decoder.weights().embed;
  const ConstMatrixView& table = decoder.weights().embed.dense;
  QLORA_DCHECK(BytesOf(table.dtype, 1) <= BytesOf(activations.norm.dtype, 1));
  const MatrixView rows = {activations.norm.data, table.dtype, inputs.rows, table.cols, table.cols};
  const std::size_t row_bytes = BytesOf(table.dtype, table.cols);
  Memory& memory = decoder.backend().memory();
  // One row is too little to be worth a transfer of its own beside the ops.
  if (inputs.rows == 1) {
    memory.Upload(Rows(table, inputs.host_ids[0], 1).data, rows.data, row_bytes);
    return rows;
  }
  const std::span<std::byte> staging = BytesIn(activations.inputs.staged_rows);
  // Pieces are not cut at the end of the room: a multiple of them fits.
  const auto room = static_cast<std::int64_t>(staging.size() / row_bytes) / kPiece * kPiece;
  for (std::int64_t begin = 0; begin < inputs.rows; begin += kPiece) {
    const std::int64_t count = std::min(kPiece, inputs.rows - begin);
    std::byte* const staged = staging.data() + begin % room * row_bytes;
    memory.WaitFor(staged, count * row_bytes);
    for (std::int64_t n = 0; n < count; ++n) {
      std::memcpy(staged + n * row_bytes, Rows(table, inputs.host_ids[begin + n], 1).data,
                  row_bytes);
    }
    memory.QueueUpload(staged, Rows(rows, begin, count).data, count * row_bytes);
  }
  memory.OpsWaitFor(rows.data, inputs.rows * row_bytes);
  return rows;
}

// Transfers of x_in of offloaded layers run beside ops. These layers use two places in turn
// (kInputSlots):
//
//   ops     | layer 0 | layer 1 | layer 2 | ...    | backward 2 | backward 1 | backward 0
//   copies  | out 0   | out 1   | out 2   | ...    | in 1       | in 0       |
void QueueDownloadOfInput(Memory& memory, const LayerActivations& layer) {
  if (layer.x_in_host.empty()) return;
  const auto bytes = BytesIn(layer.x_in_host);
  memory.QueueDownload(layer.x_in.data, bytes.data(), bytes.size());
}
void QueueUploadOfInput(Memory& memory, LayerActivations& layer) {
  if (layer.x_in_host.empty()) return;
  const auto bytes = BytesIn(layer.x_in_host);
  memory.QueueUpload(bytes.data(), layer.x_in.data, bytes.size());
}
// Makes later ops wait for the transfers of m, so that they read uploaded values and overwrite
// downloaded ones.
void OpsWaitFor(Memory& memory, const MatrixView& m) {
  const auto bytes = BytesIn(m);
  memory.OpsWaitFor(bytes.data(), bytes.size());
}

void ForwardLayers(const Decoder& decoder, const PassInputs& inputs, SequenceState* state,
                   const InputObserver* observer, Activations& activations) {
  Memory& memory = decoder.backend().memory();
  const IndexRange here = decoder.config().layers_here();
  for (std::int64_t l = here.begin; l < here.end; ++l) {
    QueueDownloadOfInput(memory, activations.layers[l]);
    Layer layer({decoder, inputs, l, state, observer, activations});
    layer.ForwardMixer();
    const MatrixView& x_out =
        l + 1 == here.end ? activations.x_out : activations.layers[l + 1].x_in;
    OpsWaitFor(memory, x_out);
    layer.ForwardMlp(x_out);
  }
}

// The lowest layer with an adapter: nothing below has gradients.
std::int64_t LowestTrainedLayer(const LoraAdapter& adapter) {
  const auto has_adapter = [](const PerLinear<LoraLinear>& layer) {
    bool found = false;
    layer.ForEach([&](const LoraLinear& lora) { found |= lora.rank > 0; });
    return found;
  };
  const auto& layers = adapter.layers();
  return std::find_if(layers.begin(), layers.end(), has_adapter) - layers.begin();
}

}  // namespace

// x_in of layer 0. Rows of different adapters may read different embeddings (modules_to_save).
void Embed(const Decoder& decoder, const PassInputs& inputs, Activations& activations,
           const InputObserver* observer) {
  const bool reads_base =
      std::ranges::any_of(inputs.adapters, ReadsBaseEmbedding, &AdapterRows::adapter);
  const WeightView base = reads_base ? GatherEmbedding(decoder, inputs, activations) : WeightView{};
  for (const AdapterRows& range : inputs.adapters) {
    const IndexView ids(inputs.ids.data + range.begin, range.rows);
    decoder.backend().Run(ops::Embed{ids, EmbeddingOf(base, range.adapter),
                                     decoder.config().stream_embed_scale(),
                                     Rows(activations.layers[0].x_in, range.begin, range.rows)});
  }
  AddEmbeddingNoise(decoder.backend(), inputs, activations.layers[0].x_in);
  EmbedPerLayer(decoder, inputs, observer, activations);
}

void RestoreInput(Memory& memory, LayerActivations& layer) {
  QueueUploadOfInput(memory, layer);
  OpsWaitFor(memory, layer.x_in);
}

void Forward(const Decoder& decoder, const PassInputs& inputs, Activations& activations,
             const InputObserver& observer) {
  const InputObserver* const watches = observer ? &observer : nullptr;
  if (decoder.config().has_embedding()) Embed(decoder, inputs, activations, watches);
  ForwardLayers(decoder, inputs, nullptr, watches, activations);
}

void ForwardCached(const Decoder& decoder, const PassInputs& inputs, SequenceState& state,
                   Activations& activations) {
  ForwardLayers(decoder, inputs, &state, nullptr, activations);
}

void Backward(const Decoder& decoder, const PassInputs& inputs,
              std::span<const Recompute> recompute, Activations& activations,
              LoraAdapter& trained) {
  CheckTrained(inputs, trained);
  Memory& memory = decoder.backend().memory();
  const TrainedModule* embedding = trained.embedding();
  const std::int64_t lowest = embedding != nullptr ? 0 : LowestTrainedLayer(trained);
  const IndexRange here = decoder.config().layers_here();
  for (std::int64_t l = here.begin; l < here.end; ++l) {
    if (decoder.config().is_kv_shared(l)) {
      AttentionMixer::ZeroShared(
          decoder.backend(), std::get<AttentionMixer::Activations>(activations.layers[l].mixer));
    }
  }
  for (std::int64_t l = here.end - 1; l >= std::max(here.begin, lowest); --l) {
    // Nothing below the lowest trained layer needs the gradient of its input.
    const bool trains_below = l > lowest || embedding != nullptr;
    Layer layer({decoder, inputs, l, nullptr, nullptr, activations, trains_below});
    OpsWaitFor(memory, activations.layers[l].x_in);
    // To the place of the input of layer l + 1, whose ops were given before.
    if (l > std::max(here.begin, lowest)) QueueUploadOfInput(memory, activations.layers[l - 1]);
    if (RecomputesAttention(recompute[l])) layer.ForwardMixer();
    if (RecomputesMlp(recompute[l])) layer.RecomputeMlp();
    layer.BackwardMlp(trained);
    layer.BackwardMixer(trained);
  }
  EmbedPerLayerBackward(decoder, inputs, embedding != nullptr, activations, trained);
  if (embedding == nullptr) return;
  decoder.backend().Run(ops::EmbedBackward{
      activations.dx, inputs.ids, decoder.config().stream_embed_scale(), embedding->gradient});
}

}  // namespace qlora
