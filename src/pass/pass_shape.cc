#include "pass/pass_shape.h"

#include <algorithm>

namespace qlora {

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
  // The head runs as a linear of head_rows rows. One adapter runs at a time, so its ranks count.
  limits.rows = std::max(rows, head_rows);
  limits.features = WidestGroup(config);
  limits.in_features = WidestInput(config);
  limits.vocab_rows = head_rows;
  limits.vocab = config.vocab_size;
  limits.lora_rank = MaxGroupRank(adapters);
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const LayerConfig layer = config.layer(l);
    limits.heads = std::max(limits.heads, layer.num_attention_heads);
    limits.kv_heads = std::max(limits.kv_heads, layer.num_key_value_heads);
    limits.head_dim = std::max(limits.head_dim, layer.head_dim);
    if (config.fused_qkv) limits.qkv_stride = std::max(limits.qkv_stride, layer.qkv_features());
  }
  limits.delta_rule = config.delta_rule;
  limits.gradient_rows = gradient_rows;
  limits.gradient_length = gradient_length;
  limits.work_size = size;
  return limits;
}

ActivationShape TrainShape(const Backend& backend, const DecoderConfig& config, std::int64_t rows,
                           std::int64_t supervised, WorkSize size,
                           const std::vector<Recompute>& recompute, bool host_embedding) {
  return {.rows = rows,
          .head_rows = HeadRows(backend, config, supervised, size),
          .training = true,
          .recompute = recompute,
          .host_embedding = host_embedding};
}

ActivationShape EvalShape(const Backend& backend, const DecoderConfig& config, std::int64_t rows,
                          WorkSize size, bool host_embedding) {
  return {.rows = rows,
          .head_rows = HeadRows(backend, config, rows, size),
          .training = false,
          .recompute = {},
          .host_embedding = host_embedding};
}

}  // namespace qlora
