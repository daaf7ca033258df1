#include "config/gguf_names.h"

#include <charconv>
#include <cmath>

#include "base/text.h"

namespace qlora {
namespace {

constexpr std::string_view kBlock = "blk.";

}  // namespace

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

std::int64_t GgufBlockOf(std::string_view tensor) {
  if (!tensor.starts_with(kBlock)) return -1;
  std::int64_t block = -1;
  std::from_chars(tensor.data() + kBlock.size(), tensor.data() + tensor.size(), block);
  return block;
}

std::string_view GgufNameInBlock(std::string_view tensor) {
  if (!tensor.starts_with(kBlock)) return {};
  const std::size_t dot = tensor.find('.', kBlock.size());
  return dot == tensor.npos ? std::string_view() : tensor.substr(dot + 1);
}

namespace {

// "ffn_up" of "blk.0.ffn_up.weight"; "" of other names.
std::string_view PartOf(std::string_view weight) {
  const std::string_view name = GgufNameInBlock(weight);
  return name.ends_with(".weight") ? name.substr(0, name.rfind('.')) : std::string_view();
}

bool IsOfHeads(std::string_view part) { return HasWord("attn_q attn_k attn_v attn_output", part); }

bool IsOfExperts(std::string_view part) {
  return HasWord(
      "ffn_gate_exps ffn_up_exps ffn_down_exps ffn_gate_shexp ffn_up_shexp ffn_down_shexp", part);
}

}  // namespace

bool HasGgufScales(std::string_view weight) {
  const std::string_view part = PartOf(weight);
  return IsOfHeads(part) || IsOfExperts(part) || ScalesGgufBias(weight) ||
         HasWord("attn_qkv attn_gate ssm_out ssm_alpha ssm_beta", part);
}

bool IsGgufScaled(const GgufFamily& family, std::string_view weight) {
  const std::string_view part = PartOf(weight);
  switch (family.scales) {
    case GgufScales::kNone:
      return false;
    case GgufScales::kAttention:
      return IsOfHeads(part) || part == "attn_qkv";
    case GgufScales::kAttentionAndExperts:
      return IsOfHeads(part) || IsOfExperts(part);
    case GgufScales::kAll:
      return HasGgufScales(weight);
  }
  return false;
}

bool ScalesGgufBias(std::string_view weight) {
  return HasWord("ffn_gate ffn_up ffn_down", PartOf(weight));
}

}  // namespace qlora
