#include "config/gguf_names.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace qlora {
namespace {

constexpr auto kArchitectures = std::to_array<GgufArchitecture>({
    {"llama", "llama", true},
    {"mistral", "llama", true},
    {"mixtral", "llama", true},
    {"smollm3", "smollm3", true},
    {.model_type = "qwen2", .name = "qwen2", .interleaved_rotary = false, .derived_heads = true},
    {"qwen3", "qwen3", false},
    {"qwen3_moe", "qwen3moe", false},
    {"gemma2", "gemma2", false},
    {"gemma3_text", "gemma3", false},
    {.model_type = "phi3", .name = "phi3", .interleaved_rotary = false, .derived_heads = true},
    {"gemma", "gemma", false},
    {"ministral3", "mistral3", true},
    {"granite", "granite", true},
    {.model_type = "granitemoehybrid",
     .name = "granite",
     .interleaved_rotary = true,
     .splits_gate_up = true},
    {.model_type = "olmo2", .name = "olmo2", .interleaved_rotary = false, .derived_heads = true},
    {.model_type = "olmo3", .name = "olmo2", .interleaved_rotary = false, .derived_heads = true},
    {"hunyuan_v1_dense", "hunyuan-dense", false},
    {"ernie4_5", "ernie4_5", false},
    {.model_type = "seed_oss",
     .name = "seed_oss",
     .interleaved_rotary = false,
     .mlp_norm = "post_attention_norm"},
    {"glm4", "glm4", false},
    {"gemma4_text", "gemma4", false},
    {"gemma4_unified_text", "gemma4", false},
    {.model_type = "qwen2_5_vl_text",
     .name = "qwen2vl",
     .interleaved_rotary = false,
     .derived_heads = true},
    {"qwen3_vl_text", "qwen3vl", false},
    {.model_type = "qwen3_5_text",
     .name = "qwen35",
     .interleaved_rotary = false,
     .mlp_norm = "post_attention_norm"},
    {.model_type = "qwen3_5_moe_text",
     .name = "qwen35moe",
     .interleaved_rotary = false,
     .mlp_norm = "post_attention_norm"},
    {.model_type = "qwen3_next",
     .name = "qwen3next",
     .interleaved_rotary = false,
     .mlp_norm = "post_attention_norm"},
    {.model_type = "gpt_oss",
     .name = "gpt-oss",
     .interleaved_rotary = false,
     .mlp_norm = "post_attention_norm"},
    {.model_type = "lfm2",
     .name = "lfm2",
     .interleaved_rotary = false,
     .final_norm = "token_embd_norm",
     .derived_heads = true},
    {.model_type = "lfm2_moe",
     .name = "lfm2moe",
     .interleaved_rotary = false,
     .final_norm = "token_embd_norm",
     .derived_heads = true},
});

const GgufArchitecture* FindBy(auto field, std::string_view value) {
  const auto* const found = std::ranges::find(kArchitectures, value, field);
  return found == kArchitectures.end() ? nullptr : found;
}

}  // namespace

std::span<const GgufArchitecture> GgufArchitectures() { return kArchitectures; }

const GgufArchitecture* FindGgufArchitecture(std::string_view model_type) {
  return FindBy(&GgufArchitecture::model_type, model_type);
}

const GgufArchitecture* FindGgufArchitectureNamed(std::string_view name) {
  return FindBy(&GgufArchitecture::name, name);
}

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
  if (config.model_type.starts_with("gemma4")) return config.attention_scale;  // its graph has 1
  // llama.cpp takes the number of layers for the size of the model.
  const bool is_27b = (config.model_type == "gemma2" && config.num_hidden_layers == 46) ||
                      (config.model_type == "gemma3_text" && config.num_hidden_layers == 62);
  const std::int64_t divisor =
      is_27b ? config.hidden_size / config.num_attention_heads : config.head_dim;
  const auto root = std::sqrt(static_cast<double>(divisor));
  if (config.attention_scale == static_cast<float>(1 / root)) return 1;
  return config.attention_scale * static_cast<float>(root);
}

}  // namespace qlora
