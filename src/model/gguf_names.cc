#include "model/gguf_names.h"

#include <fmt/format.h>

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
    {"qwen2", "qwen2", false},
    {"qwen3", "qwen3", false},
    {"qwen3_moe", "qwen3moe", false},
    {"gemma2", "gemma2", false},
    {"gemma3_text", "gemma3", false},
    {"phi3", "phi3", false},
});

const GgufArchitecture* FindBy(auto field, std::string_view value) {
  const auto* const found = std::ranges::find(kArchitectures, value, field);
  return found == kArchitectures.end() ? nullptr : found;
}

// checkpoint  rotates (i, i + K / 2):   0 1 2 3 | 4 5 6 7     K = 8
// llama.cpp   rotates (2 i, 2 i + 1):   0 4 | 1 5 | 2 6 | 3 7
// Rows of q and k in this order give the same scores: both change places alike.
std::vector<std::int64_t> InterleavedOrder(std::int64_t heads, std::int64_t head_dim) {
  std::vector<std::int64_t> order;
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t i = 0; i < head_dim / 2; ++i) {
      order.push_back(h * head_dim + i);
      order.push_back(h * head_dim + head_dim / 2 + i);
    }
  }
  return order;
}

}  // namespace

std::span<const GgufArchitecture> GgufArchitectures() { return kArchitectures; }

const GgufArchitecture* FindGgufArchitecture(std::string_view model_type) {
  return FindBy(&GgufArchitecture::model_type, model_type);
}

const GgufArchitecture* FindGgufArchitectureNamed(std::string_view name) {
  return FindBy(&GgufArchitecture::name, name);
}

PerLinear<std::string> GgufLinearNames(std::int64_t layer, const DecoderConfig& config) {
  PerLinear<std::string> names = {
      {"attn_q", "attn_k", "attn_v"}, "attn_output", {"ffn_gate", "ffn_up"}, {"ffn_down"}};
  // Phi-3 has q, k and v in one matrix, and gate and up in another, which llama.cpp calls ffn_up.
  if (config.fused_linears) names = {{"attn_qkv"}, "attn_output", {"ffn_up"}, {"ffn_down"}};
  if (config.moe.num_experts > 0) {
    names.gate_up = {"ffn_gate_exps", "ffn_up_exps"};
    names.down = {"ffn_down_exps"};
  }
  names.ForEach([&](std::string& name) { name = fmt::format("blk.{}.{}", layer, name); });
  return names;
}

std::vector<GgufNorm> GgufNorms(const DecoderConfig& config) {
  std::vector<GgufNorm> norms = {{"attn_norm", "input_layernorm"}};
  if (config.qk_norm) {
    norms.push_back({"attn_q_norm", "self_attn.q_norm"});
    norms.push_back({"attn_k_norm", "self_attn.k_norm"});
  }
  if (config.post_norms) {
    norms.push_back({"post_attention_norm", "post_attention_layernorm"});
    norms.push_back({"ffn_norm", "pre_feedforward_layernorm"});
    norms.push_back({"post_ffw_norm", "post_feedforward_layernorm"});
  } else {
    norms.push_back({"ffn_norm", "post_attention_layernorm"});
  }
  return norms;
}

PerLinear<std::vector<std::int64_t>> GgufRowOrder(const DecoderConfig& config) {
  PerLinear<std::vector<std::int64_t>> order;
  order.qkv.resize(config.fused_linears ? 1 : 3);
  order.gate_up.resize(config.fused_linears ? 1 : 2);
  order.down.resize(1);
  const GgufArchitecture* architecture = FindGgufArchitecture(config.model_type);
  if (architecture != nullptr && architecture->interleaved_rotary) {
    order.qkv[0] = InterleavedOrder(config.num_attention_heads, config.head_dim);
    order.qkv[1] = InterleavedOrder(config.num_key_value_heads, config.head_dim);
  }
  return order;
}

float GgufScoreFactor(const DecoderConfig& config) {
  // llama.cpp takes the number of layers for the size of the model.
  const bool is_27b = (config.model_type == "gemma2" && config.num_hidden_layers == 46) ||
                      (config.model_type == "gemma3_text" && config.num_hidden_layers == 62);
  const std::int64_t divisor =
      is_27b ? config.hidden_size / config.num_attention_heads : config.head_dim;
  const auto root = std::sqrt(static_cast<double>(divisor));
  if (config.attention_scale == static_cast<float>(1 / root)) return 1;
  return config.attention_scale * static_cast<float>(root);
}

PerLinear<LinearRows> GgufLinearRows(const DecoderConfig& config) {
  const PerLinear<std::vector<std::int64_t>> order = GgufRowOrder(config);
  PerLinear<LinearRows> rows =
      Combine(order, order, [](const auto& linear, const auto&) { return LinearRows{linear}; });
  if (config.model_type == "gemma2") rows.qkv[0].factor = GgufScoreFactor(config);
  return rows;
}

}  // namespace qlora
