// The passes over all layers; layer.cc has the steps of one.
//
//   forward    ids -> Embed -> layers[0].x_in -> layer 0 -> layers[1].x_in -> ... -> x_out
//   backward   ids <- EmbedBackward <- dx     <- layer 0 <- dx             <- ... <- dx (loss.cc)
//
// A stage of a pipeline runs its own layers. What lies before them and behind them is the work of
// other stages, which bring the x_in of the first of its layers and the dx of the last.
//
// Every layer keeps its input x_in, from which the backward pass recomputes the activations that
// the forward pass did not keep. There is one dx: each layer adds the gradients of its blocks to
// it.
#include "pass/decoder.h"

#include <algorithm>

#include "base/check.h"
#include "pass/layer.h"
#include "pass/neftune.h"

namespace qlora {
namespace {

void ForwardLayers(const Decoder& decoder, const PassInputs& inputs, const StatePool* pool,
                   const InputObserver* observer, Activations& activations) {
  const IndexRange here = decoder.config().layers_here();
  for (std::int64_t l = here.begin; l < here.end; ++l) {
    Layer layer({decoder, inputs, l, pool, observer, activations});
    layer.ForwardMixer();
    layer.ForwardMlp(l + 1 == here.end ? activations.x_out : activations.layers[l + 1].x_in);
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
  for (const AdapterRows& range : inputs.adapters) {
    const IndexView ids(inputs.ids.data + range.begin, range.rows);
    decoder.backend().Run(ops::Embed{ids, EmbeddingOf(decoder.weights(), range.adapter),
                                     decoder.config().stream_embed_scale(),
                                     Rows(activations.layers[0].x_in, range.begin, range.rows)});
  }
  AddEmbeddingNoise(decoder.backend(), inputs, activations.layers[0].x_in);
  EmbedPerLayer(decoder, inputs, observer, activations);
}

void Forward(const Decoder& decoder, const PassInputs& inputs, Activations& activations,
             const InputObserver& observer) {
  const InputObserver* const watches = observer ? &observer : nullptr;
  if (decoder.config().has_embedding()) Embed(decoder, inputs, activations, watches);
  ForwardLayers(decoder, inputs, nullptr, watches, activations);
}

void ForwardSlots(const Decoder& decoder, const PassInputs& inputs, const StatePool& pool,
                  Activations& activations) {
  ForwardLayers(decoder, inputs, &pool, nullptr, activations);
}

void Backward(const Decoder& decoder, const PassInputs& inputs,
              std::span<const Recompute> recompute, Activations& activations,
              LoraAdapter& trained) {
  CheckTrained(inputs, trained);
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
