#include "model/linear_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

namespace qlora {

namespace {

constexpr std::string_view kSideRouter = "router.proj";

std::vector<std::string> AttentionNames(const DecoderConfig& config, const LayerConfig& layer) {
  if (config.fused_qkv) return {"self_attn.qkv_proj"};
  std::vector<std::string> names = {"self_attn.q_proj"};
  if (layer.has_own_kv()) names.push_back("self_attn.k_proj");
  if (layer.has_own_kv() && !layer.k_is_v) names.push_back("self_attn.v_proj");
  if (config.output_gate == OutputGate::kHeads) names.push_back("self_attn.gate_proj");
  return names;
}

std::vector<std::string> MixerNames(const DecoderConfig& config, const LayerConfig& layer) {
  switch (layer.mixer) {
    case Mixer::kAttention:
      return AttentionNames(config, layer);
    case Mixer::kDeltaRule:
      if (config.fused_delta) return {"linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba"};
      return {"linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_b",
              "linear_attn.in_proj_a"};
    case Mixer::kShortConv:
      break;
  }
  return {"conv.in_proj"};
}

std::string LastMixerName(const DecoderConfig& config, Mixer mixer) {
  switch (mixer) {
    case Mixer::kAttention:
      return std::string(config.names.o);
    case Mixer::kDeltaRule:
      return "linear_attn.out_proj";
    case Mixer::kShortConv:
      break;
  }
  return "conv.out_proj";
}

// In the order of AttentionNames.
std::vector<LinearShape> AttentionShapes(const DecoderConfig& config, const LayerConfig& layer) {
  const std::int64_t d = config.hidden_size;
  if (config.fused_qkv) return {{layer.qkv_features(), d}};
  std::vector<LinearShape> shapes;
  shapes.push_back({layer.q_features() * (config.output_gate == OutputGate::kFull ? 2 : 1), d});
  if (layer.has_own_kv()) shapes.push_back({layer.kv_features(), d});
  if (layer.has_own_kv() && !layer.k_is_v) shapes.push_back({layer.kv_features(), d});
  if (config.output_gate == OutputGate::kHeads) shapes.push_back({layer.num_attention_heads, d});
  return shapes;
}

std::vector<LinearShape> MixerShapes(const DecoderConfig& config, const LayerConfig& layer) {
  const std::int64_t d = config.hidden_size;
  switch (layer.mixer) {
    case Mixer::kAttention:
      return AttentionShapes(config, layer);
    case Mixer::kDeltaRule: {
      const std::int64_t heads = config.delta_rule.heads;
      if (config.fused_delta) {
        return {{config.delta_conv_features() + config.delta_value_features(), d}, {2 * heads, d}};
      }
      return {{config.delta_conv_features(), d},
              {config.delta_value_features(), d},
              {heads, d},
              {heads, d}};
    }
    case Mixer::kShortConv:
      break;
  }
  return {{3 * d, d}};
}

}  // namespace

PerLinear<std::string> LinearNames(const DecoderConfig& config, std::int64_t layer) {
  const ModuleNames& of = config.names;
  const Mixer mixer = config.layers[layer].mixer;
  const auto mlp = [&](std::string_view name) { return fmt::format("{}.{}", of.mlp, name); };
  PerLinear<std::string> names;
  names.qkv = MixerNames(config, config.layers[layer]);
  names.o = LastMixerName(config, mixer);
  names.gate_up = {mlp(of.gate), mlp(of.up)};
  if (config.fused_gate_up) names.gate_up = {mlp(of.gate_up)};
  names.down = {mlp(of.down)};
  if (config.per_layer_size > 0) {
    names.per_layer_gate = {"per_layer_input_gate"};
    names.per_layer_out = {"per_layer_projection"};
    if (layer == 0) names.per_layer_model = {std::string(kPerLayerModel)};
  }
  if (const std::int64_t experts = config.side_moe.num_experts; experts > 0) {
    names.side_router = {std::string(kSideRouter)};
    for (std::int64_t e = 0; e < experts; ++e) {
      names.side_in.push_back(fmt::format("experts.{}.gate_up_proj", e));
      names.side_out.push_back(fmt::format("experts.{}.down_proj", e));
    }
  }
  if (!config.has_experts(layer)) return names;
  if (config.moe.shared_intermediate_size > 0) {
    const std::string shared = mlp("shared_expert");
    names.shared_in = {fmt::format("{}.{}", shared, of.gate), fmt::format("{}.{}", shared, of.up),
                       shared + "_gate"};
    names.shared_out = {fmt::format("{}.{}", shared, of.down)};
  }
  names.gate_up.clear();
  names.down.clear();
  for (std::int64_t e = 0; e < config.moe.num_experts; ++e) {
    const std::string expert = fmt::format("{}.experts.{}.", of.mlp, e);
    names.gate_up.push_back(expert + std::string(of.gate));
    names.gate_up.push_back(expert + std::string(of.up));
    names.down.push_back(expert + std::string(of.down));
  }
  return names;
}

std::vector<std::string> DistinctLinearNames(const DecoderConfig& config) {
  std::vector<std::string> distinct;
  // Layers with one mixer, with experts or without, have the same names, but for k and v, which
  // some lack.
  std::set<std::tuple<Mixer, bool, std::size_t>> seen;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const LayerConfig& layer = config.layers[l];
    const std::size_t inputs = MixerNames(config, layer).size();
    if (!seen.emplace(layer.mixer, config.has_experts(l), inputs).second) continue;
    LinearNames(config, l).ForEach([&](const std::string& name) {
      if (std::ranges::find(distinct, name) == distinct.end()) distinct.push_back(name);
    });
  }
  return distinct;
}

// (O, I) of each linear, in the places of PerLinear.
PerLinear<LinearShape> ShapeLinears(const DecoderConfig& config, std::int64_t l) {
  const LayerConfig layer = config.layer(l);
  const std::int64_t d = config.hidden_size;
  const std::int64_t f = layer.intermediate_size;
  PerLinear<LinearShape> shapes;
  shapes.qkv = MixerShapes(config, layer);
  shapes.o = {d, layer.mixer == Mixer::kAttention   ? layer.q_features()
                 : layer.mixer == Mixer::kDeltaRule ? config.delta_value_features()
                                                    : d};
  shapes.gate_up = {{f, d}, {f, d}};
  if (config.fused_gate_up) shapes.gate_up = {{2 * f, d}};
  shapes.down = {{d, f}};
  if (config.per_layer_size > 0) {
    shapes.per_layer_gate = {{config.per_layer_size, d}};
    shapes.per_layer_out = {{d, config.per_layer_size}};
    if (l == 0) shapes.per_layer_model = {{config.per_layer_features(), d}};
  }
  if (config.side_moe.num_experts > 0) {
    const auto experts = static_cast<std::size_t>(config.side_moe.num_experts);
    const std::int64_t m = config.side_intermediate_size;
    shapes.side_router = {{config.side_moe.num_experts, d}};
    shapes.side_in.assign(experts, {2 * m, d});
    shapes.side_out.assign(experts, {d, m});
  }
  if (!config.has_experts(l)) return shapes;
  const auto experts = static_cast<std::size_t>(config.moe.num_experts);
  shapes.gate_up.assign(2 * experts, {f, d});
  shapes.down.assign(experts, {d, f});
  if (const std::int64_t shared = config.moe.shared_intermediate_size; shared > 0) {
    shapes.shared_in = {{shared, d}, {shared, d}, {1, d}};
    shapes.shared_out = {{d, shared}};
  }
  return shapes;
}

std::int64_t WidestInput(const DecoderConfig& config) {
  std::int64_t widest = 0;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    ShapeLinears(config, l).ForEach(
        [&](const LinearShape& shape) { widest = std::max(widest, shape.in); });
  }
  return widest;
}

std::int64_t WidestLinear(const DecoderConfig& config) {
  std::int64_t widest = 0;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    ShapeLinears(config, l).ForEach(
        [&](const LinearShape& shape) { widest = std::max(widest, shape.out); });
  }
  return widest;
}

// The outputs of o or down, of all that the mixer reads its input with, of gate and up together,
// also of an expert that all tokens share, or of the linears of per-layer embeddings; F is the size
// of one expert.
std::int64_t WidestGroup(const DecoderConfig& config) {
  std::int64_t widest = std::max(
      {config.hidden_size, config.per_layer_features(), 2 * config.side_intermediate_size});
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const PerLinear<LinearShape> shapes = ShapeLinears(config, l);
    const auto sum = [](const std::vector<LinearShape>& group) {
      std::int64_t out = 0;
      for (const LinearShape& shape : group) out += shape.out;
      return out;
    };
    widest = std::max(
        {widest, sum(shapes.qkv), 2 * config.layer(l).intermediate_size, sum(shapes.shared_in)});
  }
  return widest;
}

PerLinear<std::string> LinearPaths(const DecoderConfig& config, std::int64_t layer) {
  PerLinear<std::string> paths = LinearNames(config, layer);
  paths.ForEach([&](std::string& name) {
    const bool is_of_model = name == kPerLayerModel;
    name = is_of_model ? "model." + name : fmt::format("model.layers.{}.{}", layer, name);
  });
  return paths;
}

bool IsJoinedExpert(const DecoderConfig& config, std::string_view path) {
  return config.joins_experts() && path.find("experts.") != std::string_view::npos;
}

std::string JoinedExpertsName(const DecoderConfig& config) {
  return config.moe.is_joined ? fmt::format("{}.experts", config.names.mlp) : "experts";
}

std::string_view JoinedExpertParameter(const DecoderConfig& config, std::string_view path) {
  return path.ends_with(config.names.down) ? "down_proj" : "gate_up_proj";
}

bool IsRouter(std::string_view path) { return path.ends_with(kSideRouter); }

std::string RouterName(const DecoderConfig& config) {
  return fmt::format("{}.{}", config.names.mlp, config.names.router);
}

std::string ExpertBiasName(const DecoderConfig& config) {
  return fmt::format("{}.expert_bias", config.names.mlp);
}

}  // namespace qlora
