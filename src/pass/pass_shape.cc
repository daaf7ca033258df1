#include "pass/pass_shape.h"

#include <algorithm>

namespace qlora {

BackendLimits LimitsOf(const DecoderConfig& config, const Adapters& adapters, std::int64_t rows,
                       std::int64_t head_rows, std::int64_t gradient_rows,
                       std::int64_t gradient_length) {
  BackendLimits limits;
  // The head runs as a linear of head_rows rows. One adapter runs at a time, so its ranks count.
  limits.rows = std::max(rows, head_rows);
  limits.features = WidestGroup(config);
  limits.vocab_rows = head_rows;
  limits.vocab = config.vocab_size;
  for (const LoraAdapter* adapter : adapters) {
    limits.lora_rank = std::max(limits.lora_rank, adapter->max_group_rank());
  }
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const LayerConfig layer = config.layer(l);
    limits.heads = std::max(limits.heads, layer.num_attention_heads);
    limits.kv_heads = std::max(limits.kv_heads, layer.num_key_value_heads);
    limits.head_dim = std::max(limits.head_dim, layer.head_dim);
  }
  limits.delta_rule = config.delta_rule;
  limits.gradient_rows = gradient_rows;
  limits.gradient_length = gradient_length;
  return limits;
}

ActivationShape TrainShape(const DecoderConfig& config, std::int64_t rows, std::int64_t supervised,
                           const std::vector<Recompute>& recompute, std::int64_t unfolded) {
  return {.rows = rows,
          .head_rows = HeadRows(config, supervised),
          .training = true,
          .recompute = recompute,
          .unfolded = unfolded};
}

ActivationShape AnchorShape(const DecoderConfig& config, std::int64_t rows,
                            const std::vector<Recompute>& recompute) {
  return TrainShape(config, rows, 2 * rows, recompute);  // a row of logits, and one of the base
}

ActivationShape EvalShape(const DecoderConfig& config, std::int64_t rows, std::int64_t unfolded) {
  return {.rows = rows,
          .head_rows = HeadRows(config, rows),
          .training = false,
          .recompute = {},
          .unfolded = unfolded};
}

}  // namespace qlora
