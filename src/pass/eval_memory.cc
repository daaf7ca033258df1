#include "pass/eval_memory.h"

#include "pass/pass_shape.h"

namespace qlora {
namespace {

ActivationShape EvalShape(const Decoder& decoder, std::int64_t rows) {
  return EvalShape(decoder.backend(), decoder.config(), rows, decoder.work_size(),
                   decoder.weights().host_embedding);
}

}  // namespace

PassMemory ReserveEvaluation(const Decoder& decoder, const Adapters& adapters, std::int64_t rows) {
  const ActivationShape shape = EvalShape(decoder, rows);
  decoder.backend().Reserve(
      LimitsOf(decoder.config(), adapters, rows, shape.head_rows, 0, 0, decoder.work_size()));
  return {decoder.backend().memory(),
          BytesOfPass(decoder.config(), adapters, decoder.precision(), shape)};
}

Activations& EvalMemory::ForRows(std::int64_t rows) {
  activations_ = LayoutActivations(memory_, decoder_.config(), adapters_, decoder_.precision(),
                                   EvalShape(decoder_, rows));
  return activations_;
}

}  // namespace qlora
