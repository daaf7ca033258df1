// The memory of passes without gradients: evaluation, prefill and decoding.
#ifndef QLORA_PASS_EVAL_MEMORY_H_
#define QLORA_PASS_EVAL_MEMORY_H_

#include <algorithm>
#include <cstdint>

#include "pass/decoder.h"

namespace qlora {

// Memory for passes without gradients over at most `rows` rows, and `unfolded` of
// Batch::unfolded_rows. Their workspace is reserved.
Arena ReserveEvaluation(const Decoder& decoder, const Adapters& adapters, std::int64_t rows,
                        std::int64_t unfolded = 0);

// The same in `memory`, which is replaced if it is too small.
void ReservePass(const Decoder& decoder, const Adapters& adapters, std::int64_t rows,
                 std::int64_t unfolded, Arena& memory);

// The rows of one pass: many, in whole samples. largest: tokens of the largest sample.
inline std::int64_t EvalRows(std::int64_t largest) { return std::max<std::int64_t>(1024, largest); }

// Passes without gradients, in memory that the caller owns.
class EvalMemory {
 public:
  // memory: of ReserveEvaluation for the same decoder and adapters, or as large; free for this use.
  EvalMemory(const Decoder& decoder, const Adapters& adapters, Arena& memory)
      : decoder_(decoder), adapters_(decoder.config(), adapters), memory_(memory) {}

  // Lays the activations out for a batch of `rows` rows. Errors: Runtime when the memory is too
  // small.
  Activations& ForRows(std::int64_t rows, std::int64_t unfolded = 0);

 private:
  const Decoder& decoder_;
  AdapterSizes adapters_;
  Arena& memory_;
  Activations activations_;
};

}  // namespace qlora

#endif  // QLORA_PASS_EVAL_MEMORY_H_
