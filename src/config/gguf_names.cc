#include "config/gguf_names.h"

#include <cmath>

#include "config/families.h"

namespace qlora {

std::vector<std::int64_t> GgufValueHeads(const DecoderConfig& config) {
  const DeltaRuleShape& shape = config.delta_rule;
  std::vector<std::int64_t> heads;
  // qwen3next repeats each.
  if (shape.heads == shape.key_heads || config.fused_delta) return heads;
  DeltaRuleShape tiled = shape;
  tiled.tiled = true;
  heads.resize(shape.heads);
  for (std::int64_t g = 0; g < shape.key_heads; ++g) {
    for (std::int64_t i = 0; i < shape.heads / shape.key_heads; ++i) {
      heads[tiled.value_head(g, i)] = g * (shape.heads / shape.key_heads) + i;
    }
  }
  return heads;
}

float GgufScoreFactor(const DecoderConfig& config) {
  if (config.value_norm) return config.attention_scale;  // of Gemma 4, whose graph has 1
  // llama.cpp takes the number of layers for the size of the model.
  const bool is_27b = config.num_hidden_layers == GgufFamilyOf(config.model_type).layers_of_27b;
  const std::int64_t divisor =
      is_27b ? config.hidden_size / config.num_attention_heads : config.head_dim;
  const auto root = std::sqrt(static_cast<double>(divisor));
  if (config.attention_scale == static_cast<float>(1 / root)) return 1;
  return config.attention_scale * static_cast<float>(root);
}

}  // namespace qlora
