#include "pass/eval_memory.h"

#include "pass/pass_shape.h"

namespace qlora {
Arena ReserveEvaluation(const Decoder& decoder, const Adapters& adapters, std::int64_t rows,
                        std::int64_t unfolded) {
  Backend& backend = decoder.backend();
  const ActivationShape shape = EvalShape(decoder.config(), rows, unfolded);
  backend.Reserve(LimitsOf(decoder.config(), adapters, rows, shape.head_rows));
  return Arena(BytesOfPass(decoder.config(), adapters, decoder.precision(), shape),
               backend.memory());
}

Activations& EvalMemory::ForRows(std::int64_t rows, std::int64_t unfolded) {
  activations_ = LayoutActivations(memory_, decoder_.config(), adapters_, decoder_.precision(),
                                   EvalShape(decoder_.config(), rows, unfolded));
  return activations_;
}

}  // namespace qlora
