// The memory in which a model writes texts. It is kept from call to call, so that a second one of
// the same size allocates nothing.
#ifndef QLORA_INFERENCE_GENERATION_MEMORY_H_
#define QLORA_INFERENCE_GENERATION_MEMORY_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "pass/decoder.h"
#include "pass/eval_memory.h"
#include "pass/state_pool.h"

namespace qlora {

struct GenerationSize {
  std::int64_t rows = 0;       // of one pass, at most
  std::int64_t positions = 0;  // of a sequence, at most
  std::int64_t slots = 1;      // sequences at a time
  // Of passes without slots, between two of an engine (ReservePass); 0: none.
  std::int64_t alone_rows = 0;
  std::int64_t alone_unfolded = 0;

  bool Holds(const GenerationSize& other) const {
    return other.rows <= rows && other.positions <= positions && other.slots <= slots &&
           other.alone_rows <= alone_rows && other.alone_unfolded <= alone_unfolded;
  }
};

// Everything that an Engine needs: rotary tables, activations, slots.
struct GenerationBuffers {
  GenerationBuffers(Backend& backend, const DecoderConfig& config, const DecoderWeights& weights,
                    const Precision& precision, const Adapters& adapters,
                    const GenerationSize& largest);
  GenerationBuffers(const GenerationBuffers&) = delete;
  GenerationBuffers& operator=(const GenerationBuffers&) = delete;

  const GenerationSize size;
  const Decoder decoder;
  Arena activations;
  EvalMemory passes;  // in `activations`
  PoolMemory pool;
};

// Keeps one set of buffers. A call that needs larger ones replaces it, so that there is never more
// memory than one call needs.
class GenerationMemory {
 public:
  // All must outlive this; adapters: the adapters of the passes.
  GenerationMemory(Backend& backend, const DecoderConfig& config, const DecoderWeights& weights,
                   const Precision& precision, Adapters adapters);

  // The buffers that were kept where they are large enough. Otherwise these are freed, then new
  // ones of this size are made, and the workspace of their passes is reserved. A call that begins
  // while another one has the buffers gets its own. Errors: OutOfMemory.
  std::unique_ptr<GenerationBuffers> Take(const GenerationSize& size);
  // Keeps the buffers of a call that has ended.
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
