#include "model/linear_shapes.h"

#include <fmt/format.h>

#include <algorithm>

namespace qlora {

PerLinear<std::string> LinearNames(const DecoderConfig& config) {
  const ModuleNames& of = config.names;
  const auto mlp = [&](std::string_view name) { return fmt::format("{}.{}", of.mlp, name); };
  PerLinear<std::string> names;
  names.qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
  if (config.fused_qkv) names.qkv = {"self_attn.qkv_proj"};
  names.o = "self_attn.o_proj";
  names.gate_up = {mlp(of.gate), mlp(of.up)};
  if (config.fused_gate_up) names.gate_up = {mlp(of.gate_up)};
  names.down = {mlp(of.down)};
  if (config.moe.num_experts == 0) return names;
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

// (O, I) of each linear, in the places of PerLinear.
PerLinear<LinearShape> ShapeLinears(const DecoderConfig& config, std::int64_t l) {
  const LayerConfig layer = config.layer(l);
  const std::int64_t d = config.hidden_size;
  const std::int64_t f = layer.intermediate_size;
  const std::int64_t q = layer.q_features();
  const std::int64_t kv = layer.kv_features();
  PerLinear<LinearShape> shapes;
  shapes.qkv = {{q, d}, {kv, d}, {kv, d}};
  if (config.fused_qkv) shapes.qkv = {{layer.qkv_features(), d}};
  shapes.o = {d, q};
  shapes.gate_up = {{f, d}, {f, d}};
  if (config.fused_gate_up) shapes.gate_up = {{2 * f, d}};
  shapes.down = {{d, f}};
  if (config.moe.num_experts > 0) {
    const auto experts = static_cast<std::size_t>(config.moe.num_experts);
    shapes.gate_up.assign(2 * experts, {f, d});
    shapes.down.assign(experts, {d, f});
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

// The outputs of o or down, of q, k and v together, or of gate and up together; F is the size of
// one expert.
std::int64_t WidestGroup(const DecoderConfig& config) {
  std::int64_t widest = config.hidden_size;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const LayerConfig layer = config.layer(l);
    widest = std::max({widest, layer.qkv_features(), 2 * layer.intermediate_size});
  }
  return widest;
}

PerLinear<std::string> LinearPaths(const DecoderConfig& config, std::int64_t layer) {
  PerLinear<std::string> paths = LinearNames(config);
  paths.ForEach([&](std::string& name) { name = fmt::format("model.layers.{}.{}", layer, name); });
  return paths;
}

std::string RouterName(const DecoderConfig& config) {
  return fmt::format("{}.gate", config.names.mlp);
}

}  // namespace qlora
