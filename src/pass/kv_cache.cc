#include "pass/kv_cache.h"

namespace qlora {

KvCache LayoutKvCache(Carver& carver, const DecoderConfig& config, const Precision& precision,
                      std::int64_t capacity) {
  KvCache cache;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const std::int64_t features = config.layer(l).kv_features();
    cache.k.push_back(carver.Matrix(precision.activation, capacity, features));
    cache.v.push_back(carver.Matrix(precision.activation, capacity, features));
  }
  return cache;
}

CacheMemory::CacheMemory(Memory& memory, const DecoderConfig& config, const Precision& precision,
                         std::int64_t capacity) {
  Carver plan;
  LayoutKvCache(plan, config, precision, capacity);
  arena_ = Arena(plan.bytes(), memory);
  Carver carver(arena_);
  cache_ = LayoutKvCache(carver, config, precision, capacity);
}

}  // namespace qlora
