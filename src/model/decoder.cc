// The passes over all layers; layer.cc has the steps of one.
#include "model/decoder.h"

#include <algorithm>

#include "base/matrix.h"
#include "model/layer.h"
#include "model/neftune.h"

namespace qlora {
namespace {

void Embed(const Decoder& decoder, const PassInputs& inputs, const MatrixView& x) {
  for (const AdapterRows& range : inputs.adapters) {
    const IndexView ids(inputs.ids.data + range.begin, range.rows);
    decoder.backend().Run(ops::Embed{ids, EmbeddingOf(decoder.weights(), range.adapter),
                                     decoder.config().embed_scale,
                                     Rows(x, range.begin, range.rows)});
  }
}

void ForwardLayers(const Decoder& decoder, const PassInputs& inputs, KvCache* cache,
                   const InputObserver* observer, Activations& activations) {
  const std::int64_t layers = decoder.config().num_hidden_layers;
  for (std::int64_t l = 0; l < layers; ++l) {
    Layer layer(decoder, inputs, l, cache, observer, activations);
    layer.ForwardAttention();
    layer.ForwardMlp(l + 1 == layers ? activations.x_out : activations.layers[l + 1].x_in);
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

void Forward(const Decoder& decoder, const PassInputs& inputs, Activations& activations,
             const InputObserver& observer) {
  const MatrixView& x = activations.layers[0].x_in;
  Embed(decoder, inputs, x);
  AddEmbeddingNoise(decoder.backend(), inputs, x);
  ForwardLayers(decoder, inputs, nullptr, observer ? &observer : nullptr, activations);
}

void ForwardCached(const Decoder& decoder, const PassInputs& inputs, KvCache& cache,
                   Activations& activations) {
  Embed(decoder, inputs, activations.layers[0].x_in);
  ForwardLayers(decoder, inputs, &cache, nullptr, activations);
  cache.length += inputs.rows;
}

void Backward(const Decoder& decoder, const PassInputs& inputs,
              std::span<const Recompute> recompute, Activations& activations,
              LoraAdapter& trained) {
  CheckTrained(inputs, trained);
  const TrainedModule* embedding = trained.embedding();
  const std::int64_t lowest = embedding != nullptr ? 0 : LowestTrainedLayer(trained);
  for (std::int64_t l = decoder.config().num_hidden_layers - 1; l >= lowest; --l) {
    Layer layer(decoder, inputs, l, nullptr, nullptr, activations);
    if (RecomputesAttention(recompute[l])) layer.ForwardAttention();
    if (RecomputesMlp(recompute[l])) layer.ForwardMlp({});
    layer.BackwardMlp(trained);
    layer.BackwardAttention(trained, l > lowest || embedding != nullptr);
  }
  if (embedding == nullptr) return;
  decoder.backend().Run(ops::EmbedBackward{activations.dx, inputs.ids, decoder.config().embed_scale,
                                           embedding->gradient});
}

}  // namespace qlora
