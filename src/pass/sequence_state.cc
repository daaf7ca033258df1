#include "pass/sequence_state.h"

namespace qlora {
namespace {

// The channels of the convolution of a layer; 0: it has none.
std::int64_t ConvChannels(const DecoderConfig& config, Mixer mixer) {
  switch (mixer) {
    case Mixer::kAttention:
      return 0;
    case Mixer::kDeltaRule:
      return config.delta_conv_features();
    case Mixer::kShortConv:
      break;
  }
  return config.hidden_size;
}

}  // namespace

SequenceState LayoutSequenceState(Carver& carver, const DecoderConfig& config,
                                  const Precision& precision, std::int64_t capacity) {
  SequenceState state;
  state.capacity = capacity;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const LayerConfig sizes = config.layer(l);
    LayerState& layer = state.layers.emplace_back();
    if (sizes.mixer == Mixer::kAttention && sizes.has_own_kv()) {
      layer.k = carver.Matrix(precision.activation, capacity, sizes.kv_features());
      layer.v = carver.Matrix(precision.activation, capacity, sizes.kv_features());
    }
    // A convolution with one tap keeps nothing.
    const std::int64_t channels = ConvChannels(config, sizes.mixer);
    if (channels > 0 && config.conv_taps > 1) {
      layer.window = carver.Matrix(precision.activation, config.conv_taps - 1, channels);
    }
    if (sizes.mixer == Mixer::kDeltaRule) {
      const DeltaRuleShape& shape = config.delta_rule;
      layer.delta = carver.Matrix(precision.wide, shape.heads * shape.key_dim, shape.value_dim);
    }
  }
  return state;
}

StateMemory::StateMemory(Memory& memory, const DecoderConfig& config, const Precision& precision,
                         std::int64_t capacity) {
  Carver plan;
  LayoutSequenceState(plan, config, precision, capacity);
  arena_ = Arena(plan.bytes(), memory);
  Carver carver(arena_);
  state_ = LayoutSequenceState(carver, config, precision, capacity);
}

}  // namespace qlora
