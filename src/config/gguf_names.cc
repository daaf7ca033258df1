#include "config/gguf_names.h"

#include <algorithm>
#include <array>
#include <cmath>

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

bool IsGgufScaled(const GgufFamily& family, std::string_view weight) {
  constexpr auto kMlp = std::to_array<std::string_view>({"ffn_gate", "ffn_up", "ffn_down"});
  constexpr auto kOthers = std::to_array<std::string_view>(
      {"attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "attn_gate", "ssm_in", "ssm_out",
       "ssm_alpha", "ssm_beta", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_up_exps",
       "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"});
  const std::size_t begin = weight.starts_with("blk.") ? weight.find('.', 4) : weight.npos;
  if (begin == weight.npos || !weight.ends_with(".weight")) return false;
  const std::string_view part = weight.substr(begin + 1, weight.rfind('.') - begin - 1);
  if (std::ranges::find(kMlp, part) != kMlp.end()) return family.scales == GgufScales::kAll;
  // Its graph leaves this one out, which that of Qwen3.5 takes.
  if (family.architecture == "qwen3next" && part == "ssm_out") return false;
  return std::ranges::find(kOthers, part) != kOthers.end() && family.scales != GgufScales::kNone;
}

}  // namespace qlora
