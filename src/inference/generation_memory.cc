#include "inference/generation_memory.h"

#include "pass/slot_pass.h"

namespace qlora {

// Members are initialized in the order of their declaration, and each needs those before it.
GenerationBuffers::GenerationBuffers(Backend& backend, const DecoderConfig& config,
                                     const DecoderWeights& weights, const Precision& precision,
                                     const Adapters& adapters, const GenerationSize& largest)
    : size(largest),
      decoder(backend, config, weights, precision, size.positions),
      activations(ReserveSlots(decoder, adapters, size.rows)),
      passes(decoder, adapters, activations),
      pool(backend.memory(), config, precision, size.slots, size.positions) {
  if (size.alone_rows > 0) {
    ReservePass(decoder, adapters, size.alone_rows, size.alone_unfolded, activations);
  }
}

GenerationMemory::GenerationMemory(Backend& backend, const DecoderConfig& config,
                                   const DecoderWeights& weights, const Precision& precision,
                                   Adapters adapters)
    : backend_(backend),
      config_(config),
      weights_(weights),
      precision_(precision),
      adapters_(std::move(adapters)) {}

std::unique_ptr<GenerationBuffers> GenerationMemory::Take(const GenerationSize& size) {
  if (kept_ != nullptr && kept_->size.Holds(size)) return std::move(kept_);
  // Before others are made: both would be more than any call needs.
  Free();
  return std::make_unique<GenerationBuffers>(backend_, config_, weights_, precision_, adapters_,
                                             size);
}

}  // namespace qlora
