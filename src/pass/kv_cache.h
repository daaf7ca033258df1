// The keys and values of the tokens that a sequence has so far, for decoding token by token.
#ifndef QLORA_PASS_KV_CACHE_H_
#define QLORA_PASS_KV_CACHE_H_

#include <cstdint>
#include <vector>

#include "base/arena.h"
#include "base/matrix.h"
#include "model/config.h"

namespace qlora {

// Keys and values of one sequence, for incremental decoding.
struct KvCache {
  std::vector<MatrixView> k;  // L x (capacity, G*K) act
  std::vector<MatrixView> v;  // L x (capacity, G*K) act
  std::int64_t length = 0;    // positions filled
};

KvCache LayoutKvCache(Carver& carver, const DecoderConfig& config, const Precision& precision,
                      std::int64_t capacity);

// A key/value cache with its memory.
class CacheMemory {
 public:
  CacheMemory(Memory& memory, const DecoderConfig& config, const Precision& precision,
              std::int64_t capacity);
  KvCache& cache() { return cache_; }

 private:
  Arena arena_;
  KvCache cache_;
};

}  // namespace qlora

#endif  // QLORA_PASS_KV_CACHE_H_
