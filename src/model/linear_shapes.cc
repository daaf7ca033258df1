#include "model/linear_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "model/tensor_list.h"

namespace qlora {

PerLinear<std::string> LinearNames(const DecoderConfig& config, std::int64_t layer) {
  PerLinear<std::string> names;
  ForEachLinear(LayerTensors(config, layer), [&](const LayerTensor& row, std::int64_t expert) {
    Append(names, row.group, row.Module(expert));
  });
  return names;
}

std::vector<std::string> DistinctLinearNames(const DecoderConfig& config) {
  std::vector<std::string> distinct;
  std::set<std::string> seen;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    bool has_more = false;
    const std::vector<LayerTensor> rows = LayerTensors(config, l);
    for (const LayerTensor& row : rows) has_more |= seen.insert(row.name).second;
    if (!has_more) continue;
    ForEachLinear(rows, [&](const LayerTensor& row, std::int64_t expert) {
      std::string name = row.Module(expert);
      if (std::ranges::find(distinct, name) == distinct.end()) distinct.push_back(std::move(name));
    });
  }
  return distinct;
}

PerLinear<LinearShape> ShapeLinears(const DecoderConfig& config, std::int64_t layer) {
  PerLinear<LinearShape> shapes;
  ForEachLinear(LayerTensors(config, layer), [&](const LayerTensor& row, std::int64_t) {
    Append(shapes, row.group, row.shape);
  });
  return shapes;
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
  PerLinear<std::string> paths;
  ForEachLinear(LayerTensors(config, layer), [&](const LayerTensor& row, std::int64_t expert) {
    Append(paths, row.group, row.ModuleIn("model.", layer, expert));
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
