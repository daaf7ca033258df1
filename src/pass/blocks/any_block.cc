#include "pass/blocks/any_block.h"

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

LayerState LayoutState(LayerCarver& c, std::int64_t slots) {
  return std::visit(
      [&]<typename A>(const A&) { return LayerState(A::Block::LayoutState(c, slots)); },
      MixerOf(c.config, c.layer));
}

}  // namespace qlora
