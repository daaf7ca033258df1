// The state of a sequence that is decoded token by token: that of the mixer of each layer.
#ifndef QLORA_PASS_SEQUENCE_STATE_H_
#define QLORA_PASS_SEQUENCE_STATE_H_

#include <cstdint>
#include <vector>

#include "base/arena.h"
#include "base/matrix.h"
#include "config/config.h"
#include "pass/blocks/any_block.h"

namespace qlora {

struct SequenceState {
  std::vector<LayerState> layers;  // L
  std::int64_t capacity = 0;       // positions that there is room for
  std::int64_t length = 0;         // positions passed; at 0, layers begin with an empty state
};

SequenceState LayoutSequenceState(Carver& carver, const DecoderConfig& config,
                                  const Precision& precision, std::int64_t capacity);

// A state with its memory.
class StateMemory {
 public:
  StateMemory(Memory& memory, const DecoderConfig& config, const Precision& precision,
              std::int64_t capacity);
  SequenceState& state() { return state_; }

 private:
  Arena arena_;
  SequenceState state_;
};

}  // namespace qlora

#endif  // QLORA_PASS_SEQUENCE_STATE_H_
