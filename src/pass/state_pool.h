// What sequences carry from pass to pass: the states of their mixers, in slots of one pool.
//
//   slot            0             1             2
//   keys, values    capacity rows | capacity rows | ...      a row is a position
//   windows         taps - 1 rows | taps - 1 rows | ...      of convolutions
//   delta rules     H*K rows      | H*K rows      | ...
#ifndef QLORA_PASS_STATE_POOL_H_
#define QLORA_PASS_STATE_POOL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "base/arena.h"
#include "base/matrix.h"
#include "config/config.h"
#include "pass/blocks/any_block.h"

namespace qlora {

struct StatePool {
  std::vector<LayerState> layers;  // L
  std::int64_t slots = 0;
  std::int64_t capacity = 0;  // positions of a slot

  // False with windows and delta rules, whose states are of all tokens before.
  bool has_keys_alone() const;
};

// Copies the keys and values of the first `rows` positions of one slot to another. The pool has
// keys alone.
void CopyKeys(Backend& backend, const StatePool& pool, std::int64_t from, std::int64_t to,
              std::int64_t rows);

StatePool LayoutStatePool(Carver& carver, const DecoderConfig& config, const Precision& precision,
                          std::int64_t slots, std::int64_t capacity);
std::size_t BytesOfPool(const DecoderConfig& config, const Precision& precision, std::int64_t slots,
                        std::int64_t capacity);

// A pool with its memory.
class PoolMemory {
 public:
  PoolMemory(Memory& memory, const DecoderConfig& config, const Precision& precision,
             std::int64_t slots, std::int64_t capacity);
  const StatePool& pool() const { return pool_; }

 private:
  Arena arena_;
  StatePool pool_;
};

}  // namespace qlora

#endif  // QLORA_PASS_STATE_POOL_H_
