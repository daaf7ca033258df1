#include "pass/sequence_state.h"

namespace qlora {

SequenceState LayoutSequenceState(Carver& carver, const DecoderConfig& config,
                                  const Precision& precision, std::int64_t capacity) {
  SequenceState state;
  state.capacity = capacity;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    LayerCarver c(carver, config, precision, l, capacity, false);
    state.layers.push_back(LayoutState(c));
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
