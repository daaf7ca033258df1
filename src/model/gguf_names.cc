#include "model/gguf_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

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

// in_proj_qkvz goes from key head to key head, and llama.cpp has all q, all k, all v in one tensor
// and all z in another. in_proj_ba stays.
std::vector<std::vector<std::int64_t>> FusedDeltaOrder(const DeltaRuleShape& shape) {
  const std::int64_t key = shape.key_dim;
  const std::int64_t value = shape.heads / shape.key_heads * shape.value_dim;
  const std::int64_t block = 2 * key + 2 * value;
  std::vector<std::vector<std::int64_t>> order(3);
  const auto add = [&](std::vector<std::int64_t>& rows, std::int64_t first, std::int64_t count) {
    for (std::int64_t g = 0; g < shape.key_heads; ++g) {
      for (std::int64_t i = 0; i < count; ++i) rows.push_back(g * block + first + i);
    }
  };
  add(order[0], 0, key);
  add(order[0], key, key);
  add(order[0], 2 * key, value);
  add(order[1], 2 * key + value, value);
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
  // Gate and up in one matrix are called ffn_up.
  if (config.fused_qkv) names.qkv = {"attn_qkv"};
  const Mixer mixer = config.layers[layer].mixer;
  if (mixer == Mixer::kDeltaRule) {
    names.qkv = {"attn_qkv", "attn_gate", "ssm_beta", "ssm_alpha"};
    if (config.fused_delta) names.qkv = {"attn_qkv", "attn_gate", "ssm_ba"};
    names.o = "ssm_out";
  }
  if (mixer == Mixer::kShortConv) {
    names.qkv = {"shortconv.in_proj"};
    names.o = "shortconv.out_proj";
  }
  const GgufArchitecture* architecture = FindGgufArchitecture(config.model_type);
  const bool splits = architecture != nullptr && architecture->splits_gate_up;
  if (config.fused_gate_up && !splits) names.gate_up = {"ffn_up"};
  if (config.has_experts(layer)) {
    names.gate_up = {"ffn_gate_exps", "ffn_up_exps"};
    names.down = {"ffn_down_exps"};
    if (config.moe.shared_intermediate_size > 0) {
      names.shared_in = {"ffn_gate_shexp", "ffn_up_shexp", "ffn_gate_inp_shexp"};
      names.shared_out = {"ffn_down_shexp"};
    }
  }
  // Without values of its own, or without keys too.
  if (mixer == Mixer::kAttention) names.qkv.resize(ShapeLinears(config, layer).qkv.size());
  if (config.per_layer_size > 0) {
    names.per_layer_gate = {"inp_gate"};
    names.per_layer_out = {"proj"};
  }
  if (config.side_moe.num_experts > 0) {
    names.side_router = {"ffn_gate_inp"};
    names.side_in = {"ffn_gate_up_exps"};
    names.side_out = {"ffn_down_exps"};
  }
  names.ForEach([&](std::string& name) { name = fmt::format("blk.{}.{}", layer, name); });
  if (config.per_layer_size > 0 && layer == 0) names.per_layer_model = {"per_layer_model_proj"};
  return names;
}

std::string GgufMlpNorm(const DecoderConfig& config) {
  const GgufArchitecture* architecture = FindGgufArchitecture(config.model_type);
  return std::string(architecture == nullptr ? "ffn_norm" : architecture->mlp_norm);
}

std::vector<GgufNorm> GgufNorms(std::int64_t layer, const DecoderConfig& config) {
  const ModuleNames& of = config.names;
  const std::int64_t d = config.hidden_size;
  std::vector<GgufNorm> norms;
  if (config.input_norms) norms.push_back({"attn_norm", of.input_norm, d});
  const Mixer mixer = config.layers[layer].mixer;
  if (mixer == Mixer::kDeltaRule) {
    norms.push_back({"ssm_norm", "linear_attn.norm", config.delta_rule.value_dim});
  }
  if (mixer == Mixer::kAttention && config.qk_norm != QkNorm::kNone) {
    norms.push_back({"attn_q_norm", of.q_norm, config.q_norm_size(layer)});
    if (config.layers[layer].has_own_kv()) {
      norms.push_back({"attn_k_norm", of.k_norm, config.k_norm_size(layer)});
    }
  }
  if (config.post_norms) norms.push_back({"post_attention_norm", of.post_attn_norm, d});
  if (config.input_norms) norms.push_back({GgufMlpNorm(config), of.mlp_norm, d});
  if (config.post_norms) norms.push_back({"post_ffw_norm", of.post_mlp_norm, d});
  if (config.side_moe.num_experts > 0) {
    norms.push_back({"post_ffw_norm_1", "post_feedforward_layernorm_1", d});
    norms.push_back({"pre_ffw_norm_2", "pre_feedforward_layernorm_2", d});
    norms.push_back({"post_ffw_norm_2", "post_feedforward_layernorm_2", d});
  }
  if (config.per_layer_size > 0) norms.push_back({"post_norm", "post_per_layer_input_norm", d});
  return norms;
}

PerLinear<std::vector<std::int64_t>> GgufRowOrder(std::int64_t layer, const DecoderConfig& config) {
  PerLinear<std::vector<std::int64_t>> order;
  const PerLinear<LinearShape> shapes = ShapeLinears(config, layer);
  order.qkv.resize(shapes.qkv.size());
  order.per_layer_gate.resize(shapes.per_layer_gate.size());
  order.per_layer_out.resize(shapes.per_layer_out.size());
  order.per_layer_model.resize(shapes.per_layer_model.size());
  order.gate_up.resize(config.fused_gate_up ? 1 : 2);
  order.down.resize(1);
  order.shared_in.resize(shapes.shared_in.size());
  order.shared_out.resize(shapes.shared_out.size());
  if (config.side_moe.num_experts > 0) {
    order.side_router.resize(1);
    order.side_in.resize(1);
    order.side_out.resize(1);
  }
  if (config.fused_delta && config.layers[layer].mixer == Mixer::kDeltaRule) {
    order.qkv = FusedDeltaOrder(config.delta_rule);
  }
  const GgufArchitecture* architecture = FindGgufArchitecture(config.model_type);
  const bool attends = config.layers[layer].mixer == Mixer::kAttention;
  if (architecture != nullptr && architecture->interleaved_rotary && attends) {
    const LayerConfig sizes = config.layer(layer);
    order.qkv[0] = InterleavedOrder(sizes.num_attention_heads, sizes.head_dim);
    order.qkv[1] = InterleavedOrder(sizes.num_key_value_heads, sizes.head_dim);
  }
  if (architecture != nullptr && architecture->splits_gate_up) {
    const std::int64_t f = config.layer(layer).intermediate_size;
    order.gate_up.assign(2, std::vector<std::int64_t>(f));
    std::iota(order.gate_up[0].begin(), order.gate_up[0].end(), 0);
    std::iota(order.gate_up[1].begin(), order.gate_up[1].end(), f);
  }
  return order;
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

std::vector<std::int64_t> RowsOfHeads(const std::vector<std::int64_t>& heads, std::int64_t size,
                                      std::int64_t before) {
  std::vector<std::int64_t> rows;
  if (heads.empty()) return rows;
  rows.resize(before);
  std::iota(rows.begin(), rows.end(), 0);
  for (const std::int64_t head : heads) {
    for (std::int64_t i = 0; i < size; ++i) rows.push_back(before + head * size + i);
  }
  return rows;
}

PerLinear<LinearRows> ValueHeadOrder(std::int64_t layer, const DecoderConfig& config,
                                     const std::vector<std::int64_t>& heads) {
  const PerLinear<LinearShape> shapes = ShapeLinears(config, layer);
  PerLinear<LinearRows> rows =
      Combine(shapes, shapes, [](const auto&, const auto&) { return LinearRows{}; });
  if (config.layers[layer].mixer != Mixer::kDeltaRule) return rows;
  const std::int64_t values = config.delta_value_features();
  const std::int64_t size = config.delta_rule.value_dim;
  rows.qkv[0].order = RowsOfHeads(heads, size, config.delta_conv_features() - values);
  rows.qkv[1].order = RowsOfHeads(heads, size);
  rows.qkv[2].order = rows.qkv[3].order = heads;
  rows.o.columns = RowsOfHeads(heads, size);
  return rows;
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

PerLinear<LinearRows> GgufLinearRows(std::int64_t layer, const DecoderConfig& config) {
  // The value heads of a model that was read from a GGUF file are in its order, and those of fused
  // linears keep theirs.
  if (config.layers[layer].mixer == Mixer::kDeltaRule && !config.delta_rule.tiled &&
      !config.fused_delta) {
    PerLinear<LinearRows> rows = ValueHeadOrder(layer, config, GgufValueHeads(config));
    // Experts are stacked.
    rows.gate_up.resize(2);
    rows.down.resize(1);
    return rows;
  }
  const PerLinear<std::vector<std::int64_t>> order = GgufRowOrder(layer, config);
  PerLinear<LinearRows> rows = Combine(order, order, [](const auto& linear, const auto&) {
    return LinearRows{linear, {}};
  });
  if (config.model_type == "gemma2") rows.qkv[0].factor = GgufScoreFactor(config);
  return rows;
}

}  // namespace qlora
