#include "model/setup.h"

#include <algorithm>

#include "base/check.h"

namespace qlora {

// {activation, wide}: the wide type is float32 in every run.
Precision ParsePrecision(const std::string& compute_dtype, Device device) {
  if (compute_dtype == "float32") return {DType::kF32, DType::kF32};
  if (compute_dtype == "bfloat16") return {DType::kBF16, DType::kF32};
  if (compute_dtype == "auto") return {PreferredActivation(device), DType::kF32};
  ThrowInvalidInput("compute_dtype expects auto, float32 or bfloat16, found '{}'", compute_dtype);
}

QuantizeOptions ParseQuantizeOptions(const QuantizationFields& fields) {
  const std::string& quant_type = fields.bnb_4bit_quant_type;
  const std::int64_t block_size = fields.bnb_4bit_blocksize;
  QuantizeOptions options;
  if (quant_type == "fp4") {
    options.type = QuantType::kFp4;
  } else if (quant_type != "nf4") {
    ThrowInvalidInput("bnb_4bit_quant_type expects nf4 or fp4, found '{}'", quant_type);
  }
  // Double quantization: the scales are codes of 8 bits, which have scales again.
  options.scale_type = fields.bnb_4bit_use_double_quant ? ScaleType::kDoubleBnb : ScaleType::kF32;
  const bool power_of_two = block_size > 0 && (block_size & (block_size - 1)) == 0;
  if (!power_of_two || block_size < 32 || block_size > 4096) {
    ThrowInvalidInput("bnb_4bit_blocksize expects a power of two from 32 to 4096, found {}",
                      block_size);
  }
  options.block_size = block_size;
  options.scale_search = fields.scale_search;
  return options;
}

namespace {

std::int64_t MaxGroupRank(const Adapters& adapters) {
  std::int64_t rank = 0;
  for (const LoraAdapter* adapter : adapters) rank = std::max(rank, adapter->max_group_rank());
  return rank;
}

}  // namespace

BackendLimits LimitsOf(const DecoderConfig& config, const Adapters& adapters, std::int64_t rows,
                       std::int64_t head_rows, std::int64_t gradient_rows,
                       std::int64_t gradient_length, WorkSize size) {
  BackendLimits limits;
  // The head runs as a linear of head_rows rows. Ranks are those of one adapter at a time.
  limits.rows = std::max(rows, head_rows);
  limits.features = WidestGroup(config);
  limits.in_features = WidestInput(config);
  limits.vocab_rows = head_rows;
  limits.vocab = config.vocab_size;
  limits.lora_rank = MaxGroupRank(adapters);
  limits.heads = config.num_attention_heads;
  limits.kv_heads = config.num_key_value_heads;
  limits.head_dim = config.head_dim;
  if (config.fused_linears) limits.qkv_stride = config.qkv_features();
  limits.gradient_rows = gradient_rows;
  limits.gradient_length = gradient_length;
  limits.work_size = size;
  return limits;
}

std::int64_t TailColumns(const Backend& backend, const Adapters& adapters) {
  return backend.TailColumns(MaxGroupRank(adapters));
}

ActivationShape TrainShape(const Backend& backend, const DecoderConfig& config,
                           const Adapters& adapters, std::int64_t rows, std::int64_t supervised,
                           WorkSize size, const std::vector<Recompute>& recompute,
                           bool host_embedding) {
  return {.rows = rows,
          .head_rows = HeadRows(backend, config, supervised, size),
          .training = true,
          .recompute = recompute,
          .host_embedding = host_embedding,
          .tail = TailColumns(backend, adapters)};
}

ActivationShape EvalShape(const Backend& backend, const DecoderConfig& config,
                          const Adapters& adapters, std::int64_t rows, WorkSize size,
                          bool host_embedding) {
  return {.rows = rows,
          .head_rows = HeadRows(backend, config, rows, size),
          .training = false,
          .recompute = {},
          .host_embedding = host_embedding,
          .tail = TailColumns(backend, adapters)};
}

namespace {

ActivationShape EvalShape(const Decoder& decoder, const Adapters& adapters, std::int64_t rows) {
  return EvalShape(decoder.backend(), decoder.config(), adapters, rows, decoder.work_size(),
                   decoder.weights().host_embedding);
}

}  // namespace

PassMemory ReserveEvaluation(const Decoder& decoder, const Adapters& adapters, std::int64_t rows) {
  const ActivationShape shape = EvalShape(decoder, adapters, rows);
  decoder.backend().Reserve(
      LimitsOf(decoder.config(), adapters, rows, shape.head_rows, 0, 0, decoder.work_size()));
  return {decoder.backend().memory(),
          BytesOfPass(decoder.config(), adapters, decoder.precision(), shape)};
}

Activations& EvalMemory::ForRows(std::int64_t rows) {
  activations_ = LayoutActivations(memory_, decoder_.config(), adapters_, decoder_.precision(),
                                   EvalShape(decoder_, adapters_, rows));
  return activations_;
}

CacheMemory::CacheMemory(const Decoder& decoder, std::int64_t capacity) {
  Carver plan;
  LayoutKvCache(plan, decoder.config(), decoder.precision(), capacity);
  arena_ = Arena(plan.bytes(), decoder.backend().memory());
  Carver carver(arena_);
  cache_ = LayoutKvCache(carver, decoder.config(), decoder.precision(), capacity);
}

}  // namespace qlora
