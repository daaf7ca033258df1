#include "inference/generation_memory.h"

namespace qlora {

// Members are initialized in the order of their declaration, and each needs those before it.
GenerationBuffers::GenerationBuffers(Backend& backend, const DecoderConfig& config,
                                     const DecoderWeights& weights, const Precision& precision,
                                     const Adapters& adapters, std::int64_t max_rows,
                                     std::int64_t max_positions)
    : rows(max_rows),
      positions(max_positions),
      decoder(backend, config, weights, precision, max_positions),
      activations(ReserveEvaluation(decoder, adapters, max_rows)),
      passes(decoder, adapters, activations),
      state(backend.memory(), config, precision, max_positions) {}

GenerationMemory::GenerationMemory(Backend& backend, const DecoderConfig& config,
                                   const DecoderWeights& weights, const Precision& precision,
                                   Adapters adapters)
    : backend_(backend),
      config_(config),
      weights_(weights),
      precision_(precision),
      adapters_(std::move(adapters)) {}

std::unique_ptr<GenerationBuffers> GenerationMemory::Take(std::int64_t rows,
                                                          std::int64_t positions) {
  if (kept_ != nullptr && rows <= kept_->rows && positions <= kept_->positions) {
    return std::move(kept_);
  }
  // Before others are made: both would be more than any text needs.
  Free();
  return std::make_unique<GenerationBuffers>(backend_, config_, weights_, precision_, adapters_,
                                             rows, positions);
}

}  // namespace qlora
