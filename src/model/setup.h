// From user options to what the decoder is built with.
#ifndef QLORA_MODEL_SETUP_H_
#define QLORA_MODEL_SETUP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "backend/backend.h"
#include "model/config.h"
#include "model/decoder.h"
#include "model/lora.h"
#include "qlora/context.h"
#include "qlora/nf4.h"
#include "qlora/quantization.h"

namespace qlora {

// "auto", "float32" or "bfloat16" -> the activation type; auto is what the device prefers.
Precision ParsePrecision(const std::string& compute_dtype, Device device);

// Errors: InvalidInput for a codebook or block size that does not exist.
QuantizeOptions ParseQuantizeOptions(const QuantizationFields& fields);

// The largest operands of passes with at most `rows` rows and `head_rows` rows of logits. Backward
// passes have at most `gradient_rows` rows, in sequences of at most `gradient_length` tokens.
BackendLimits LimitsOf(const DecoderConfig& config, const Adapters& adapters, std::int64_t rows,
                       std::int64_t head_rows, std::int64_t gradient_rows = 0,
                       std::int64_t gradient_length = 0, WorkSize size = WorkSize::kFast);

// ActivationShape::tail for passes with one of these adapters at a time.
std::int64_t TailColumns(const Backend& backend, const Adapters& adapters);

// The shape of training passes over `rows` rows, of which `supervised` are. recompute: of each
// layer.
ActivationShape TrainShape(const Backend& backend, const DecoderConfig& config,
                           const Adapters& adapters, std::int64_t rows, std::int64_t supervised,
                           WorkSize size, const std::vector<Recompute>& recompute,
                           bool host_embedding);

// The shape of passes without gradients over `rows` rows, each of which may be supervised.
ActivationShape EvalShape(const Backend& backend, const DecoderConfig& config,
                          const Adapters& adapters, std::int64_t rows, WorkSize size,
                          bool host_embedding);

// Memory for passes without gradients over at most `rows` rows. Their workspace is reserved.
PassMemory ReserveEvaluation(const Decoder& decoder, const Adapters& adapters, std::int64_t rows);

// Passes without gradients, in memory that the caller owns.
class EvalMemory {
 public:
  // memory: of ReserveEvaluation for the same decoder and adapters, or as large; free for this use.
  EvalMemory(const Decoder& decoder, Adapters adapters, PassMemory& memory)
      : decoder_(decoder), adapters_(std::move(adapters)), memory_(memory) {}

  // Laid out again for a batch of `rows` rows. Errors: Runtime when the memory is too small.
  Activations& ForRows(std::int64_t rows);

 private:
  const Decoder& decoder_;
  Adapters adapters_;
  PassMemory& memory_;
  Activations activations_;
};

// A key/value cache with its memory.
class CacheMemory {
 public:
  CacheMemory(const Decoder& decoder, std::int64_t capacity);
  KvCache& cache() { return cache_; }

 private:
  Arena arena_;
  KvCache cache_;
};

}  // namespace qlora

#endif  // QLORA_MODEL_SETUP_H_
