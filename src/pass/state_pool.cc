#include "pass/state_pool.h"

namespace qlora {

StatePool LayoutStatePool(Carver& carver, const DecoderConfig& config, const Precision& precision,
                          std::int64_t slots, std::int64_t capacity) {
  StatePool pool;
  pool.slots = slots;
  pool.capacity = capacity;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    LayerCarver c(carver, config, precision, l, capacity, false);
    pool.layers.push_back(LayoutState(c, slots));
  }
  return pool;
}

std::size_t BytesOfPool(const DecoderConfig& config, const Precision& precision, std::int64_t slots,
                        std::int64_t capacity) {
  Carver plan;
  LayoutStatePool(plan, config, precision, slots, capacity);
  return plan.bytes();
}

PoolMemory::PoolMemory(Memory& memory, const DecoderConfig& config, const Precision& precision,
                       std::int64_t slots, std::int64_t capacity)
    : arena_(BytesOfPool(config, precision, slots, capacity), memory) {
  Carver carver(arena_);
  pool_ = LayoutStatePool(carver, config, precision, slots, capacity);
}

}  // namespace qlora
