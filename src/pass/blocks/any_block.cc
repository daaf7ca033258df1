#include "pass/blocks/any_block.h"

#include <numeric>

namespace qlora {

LayerMixer::Activations MixerOf(const DecoderConfig& config, std::int64_t layer) {
  switch (config.layers[layer].mixer) {
    case Mixer::kAttention:
      return AttentionMixer::Activations();
    case Mixer::kDeltaRule:
      return DeltaRuleMixer::Activations();
    case Mixer::kShortConv:
      break;
  }
  return ShortConvMixer::Activations();
}

LayerMlp::Activations MlpOf(const DecoderConfig& config, std::int64_t layer) {
  if (config.has_experts(layer)) return ExpertMlp::Activations();
  if (config.side_moe.num_experts > 0) return SideMlp::Activations();
  return DenseMlp::Activations();
}

std::int64_t PromptPart(const DecoderConfig& config) {
  std::int64_t part = 1;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    std::visit([&]<typename A>(const A&) { part = std::lcm(part, A::Block::kPromptPart); },
               MixerOf(config, l));
  }
  return part;
}

LayerState LayoutState(LayerCarver& c, std::int64_t slots) {
  return std::visit(
      [&]<typename A>(const A&) { return LayerState(A::Block::LayoutState(c, slots)); },
      MixerOf(c.config, c.layer));
}

}  // namespace qlora
