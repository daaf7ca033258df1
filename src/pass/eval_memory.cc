#include "pass/eval_memory.h"

#include "pass/pass_shape.h"

namespace qlora {

Arena ReserveEvaluation(const Decoder& decoder, const Adapters& adapters, std::int64_t rows,
                        std::int64_t unfolded) {
  Arena memory;
  ReservePass(decoder, adapters, rows, unfolded, memory);
  return memory;
}

void ReservePass(const Decoder& decoder, const Adapters& adapters, std::int64_t rows,
                 std::int64_t unfolded, Arena& memory) {
  Backend& backend = decoder.backend();
  const ActivationShape shape = EvalShape(decoder.config(), rows, unfolded);
  backend.Reserve(LimitsOf(decoder.config(), adapters, rows, shape.head_rows));
  const std::size_t bytes = BytesOfPass(decoder.config(), adapters, decoder.precision(), shape);
  if (bytes <= memory.bytes()) return;
  memory = Arena();  // both could be more than there is
  memory = Arena(bytes, backend.memory());
}

Activations& EvalMemory::ForRows(std::int64_t rows, std::int64_t unfolded) {
  activations_ = LayoutActivations(memory_, decoder_.config(), adapters_, decoder_.precision(),
                                   EvalShape(decoder_.config(), rows, unfolded));
  return activations_;
}

}  // namespace qlora
