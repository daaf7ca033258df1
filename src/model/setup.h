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
                       std::int64_t gradient_length = 0);

// Forward passes without gradients over at most `rows` rows, in memory that the caller owns.
class EvalMemory {
 public:
  // arena: at least Bytes(...) for the same decoder, adapters and rows, free for this use.
  EvalMemory(const Decoder& decoder, Adapters adapters, const Arena& arena)
      : decoder_(decoder), adapters_(std::move(adapters)), arena_(arena) {}

  static std::size_t Bytes(const Backend& backend, const DecoderConfig& config,
                           const Adapters& adapters, const Precision& precision, std::int64_t rows);

  // Laid out again for a batch of `rows` rows. Errors: Runtime when the arena is too small.
  Activations& ForRows(std::int64_t rows);

 private:
  const Decoder& decoder_;
  Adapters adapters_;
  const Arena& arena_;
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
