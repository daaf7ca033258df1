#include "model/linear_shapes.h"

#include <fmt/format.h>

#include <algorithm>

namespace qlora {
namespace {

// The module that holds router and experts.
const char* MoeBlock(const DecoderConfig& config) {
  return config.model_type == "mixtral" ? "block_sparse_moe" : "mlp";
}

}  // namespace

PerLinear<std::string> LinearNames(const DecoderConfig& config) {
  if (config.fused_linears) {
    return {{"self_attn.qkv_proj"}, "self_attn.o_proj", {"mlp.gate_up_proj"}, {"mlp.down_proj"}};
  }
  PerLinear<std::string> names = {{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                                  "self_attn.o_proj",
                                  {"mlp.gate_proj", "mlp.up_proj"},
                                  {"mlp.down_proj"}};
  if (config.moe.num_experts == 0) return names;
  names.gate_up.clear();
  names.down.clear();
  const bool mixtral = config.model_type == "mixtral";
  for (std::int64_t e = 0; e < config.moe.num_experts; ++e) {
    const std::string expert = fmt::format("{}.experts.{}.", MoeBlock(config), e);
    names.gate_up.push_back(expert + (mixtral ? "w1" : "gate_proj"));
    names.gate_up.push_back(expert + (mixtral ? "w3" : "up_proj"));
    names.down.push_back(expert + (mixtral ? "w2" : "down_proj"));
  }
  return names;
}

// (O, I) of each linear, in the places of PerLinear.
PerLinear<LinearShape> ShapeLinears(const DecoderConfig& c) {
  const std::int64_t d = c.hidden_size;
  const std::int64_t f = c.intermediate_size;
  if (c.fused_linears) {
    return {{{c.qkv_features(), d}}, {d, c.q_features()}, {{2 * f, d}}, {{d, f}}};
  }
  PerLinear<LinearShape> shapes = {
      {{c.q_features(), d}, {c.kv_features(), d}, {c.kv_features(), d}},
      {d, c.q_features()},
      {{f, d}, {f, d}},
      {{d, f}}};
  if (c.moe.num_experts > 0) {
    const auto experts = static_cast<std::size_t>(c.moe.num_experts);
    shapes.gate_up.assign(2 * experts, {f, d});
    shapes.down.assign(experts, {d, f});
  }
  return shapes;
}

std::int64_t WidestInput(const DecoderConfig& config) {
  std::int64_t widest = 0;
  ShapeLinears(config).ForEach(
      [&](const LinearShape& shape) { widest = std::max(widest, shape.in); });
  return widest;
}

std::int64_t WidestLinear(const DecoderConfig& config) {
  std::int64_t widest = 0;
  ShapeLinears(config).ForEach(
      [&](const LinearShape& shape) { widest = std::max(widest, shape.out); });
  return widest;
}

// The outputs of o or down, of q, k and v together, or of gate and up together; F is the size of
// one expert.
std::int64_t WidestGroup(const DecoderConfig& config) {
  return std::max({config.hidden_size, config.qkv_features(), 2 * config.intermediate_size});
}

PerLinear<std::string> LinearPaths(const DecoderConfig& config, std::int64_t layer) {
  PerLinear<std::string> paths = LinearNames(config);
  paths.ForEach([&](std::string& name) { name = fmt::format("model.layers.{}.{}", layer, name); });
  return paths;
}

std::string RouterName(const DecoderConfig& config) {
  return std::string(MoeBlock(config)) + ".gate";
}

}  // namespace qlora
