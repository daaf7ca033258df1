#include "pass/state_pool.h"

#include <algorithm>
#include <variant>

namespace qlora {

bool StatePool::has_keys_alone() const {
  return std::ranges::all_of(
      layers, [](const LayerState& s) { return std::holds_alternative<AttentionMixer::State>(s); });
}

void CopyKeys(Backend& backend, const StatePool& pool, std::int64_t from, std::int64_t to,
              std::int64_t rows) {
  const auto copy = [&](const MatrixView& all) {
    if (all.empty()) return;
    backend.Run(
        ops::Copy{Rows(all, from * pool.capacity, rows), Rows(all, to * pool.capacity, rows)});
  };
  for (const LayerState& layer : pool.layers) {
    const auto& keys = std::get<AttentionMixer::State>(layer);
    copy(keys.k);
    copy(keys.v);
  }
}

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
