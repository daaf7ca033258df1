// The memory in which a model writes texts. It is kept from one text to the next, so that a second
// text of the same size allocates nothing.
#ifndef QLORA_INFERENCE_GENERATION_MEMORY_H_
#define QLORA_INFERENCE_GENERATION_MEMORY_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "pass/decoder.h"
#include "pass/eval_memory.h"
#include "pass/sequence_state.h"

namespace qlora {

// Everything that a CachedSequence needs: rotary tables, activations, keys and values.
struct GenerationBuffers {
  GenerationBuffers(Backend& backend, const DecoderConfig& config, const DecoderWeights& weights,
                    const Precision& precision, const Adapters& adapters, std::int64_t max_rows,
                    std::int64_t max_positions);
  GenerationBuffers(const GenerationBuffers&) = delete;
  GenerationBuffers& operator=(const GenerationBuffers&) = delete;

  const std::int64_t rows;       // of one pass, at most
  const std::int64_t positions;  // of a sequence, at most
  const Decoder decoder;
  Arena activations;
  EvalMemory passes;  // in `activations`
  StateMemory state;
};

// Keeps one set of buffers. A text that needs larger ones replaces it, so that there is never more
// memory than one text needs.
class GenerationMemory {
 public:
  // All must outlive this; adapters: the adapters of the passes.
  GenerationMemory(Backend& backend, const DecoderConfig& config, const DecoderWeights& weights,
                   const Precision& precision, Adapters adapters);

  // The buffers that were kept where they are large enough. Otherwise these are freed, then new
  // ones of this size are made, and the workspace of their passes is reserved. A text that is begun
  // while another one has the buffers gets its own. Errors: OutOfMemory.
  std::unique_ptr<GenerationBuffers> Take(std::int64_t rows, std::int64_t positions);
  // Keeps the buffers of a text that has ended.
  void Keep(std::unique_ptr<GenerationBuffers> buffers) { kept_ = std::move(buffers); }
  // Frees the kept memory.
  void Free() { kept_.reset(); }

 private:
  Backend& backend_;
  const DecoderConfig& config_;
  const DecoderWeights& weights_;
  const Precision precision_;
  const Adapters adapters_;
  std::unique_ptr<GenerationBuffers> kept_;
};

}  // namespace qlora

#endif  // QLORA_INFERENCE_GENERATION_MEMORY_H_
