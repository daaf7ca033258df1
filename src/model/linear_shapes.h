// The linears of a layer: their places, names and shapes.
#ifndef QLORA_MODEL_LINEAR_SHAPES_H_
#define QLORA_MODEL_LINEAR_SHAPES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/config.h"

namespace qlora {

// The linears of a layer that read the same input.
enum class LinearGroup : std::uint8_t {
  kQkv,
  kO,
  kGateUp,
  kDown,
  kSharedIn,
  kSharedOut,
  kPerLayerGate,
  kPerLayerOut,
  kPerLayerModel,
  kSideRouter,
  kSideIn,
  kSideOut
};
// In the order of PerLinear.
inline constexpr std::array kLinearGroups = {
    LinearGroup::kQkv,          LinearGroup::kO,           LinearGroup::kGateUp,
    LinearGroup::kDown,         LinearGroup::kSharedIn,    LinearGroup::kSharedOut,
    LinearGroup::kPerLayerGate, LinearGroup::kPerLayerOut, LinearGroup::kPerLayerModel,
    LinearGroup::kSideRouter,   LinearGroup::kSideIn,      LinearGroup::kSideOut};

template <typename T>
struct PerLinear;
template <typename T>
std::span<const T> GroupOf(const PerLinear<T>& linears, LinearGroup group);
template <typename T>
std::span<T> GroupOf(PerLinear<T>& linears, LinearGroup group);

// One T for each linear of a layer: weights, adapters and gradients share this shape. qkv holds the
// linears that the mixer of tokens reads the layer's input with: q, k and v of attention, or its
// parts of a delta rule or of a short convolution; o is the mixer's last linear. qkv and gate_up
// hold one entry where the family fuses them (Phi-3), otherwise three and two. With E
// experts, gate_up holds gate and up of expert 0, of expert 1 ... (2E), and down holds E entries,
// otherwise one. An expert that all tokens share has shared_in (gate, up, and the gate of its
// output) and shared_out (down); otherwise they are empty.
// Layers that attend to the keys and values of others have q alone there, and those
// whose values are keys have q and k. per_layer_gate and per_layer_out hold one entry each in
// models with per-layer embeddings, otherwise none; per_layer_model, the linear of the model that
// all layers read, is an entry of layer 0. With E experts beside the MLP, side_router holds their
// router, side_in E linears of gate and up together, and side_out E of down, otherwise none.
template <typename T>
struct PerLinear {
  std::vector<T> qkv;
  T o{};
  std::vector<T> gate_up;
  std::vector<T> down;
  std::vector<T> shared_in = {};
  std::vector<T> shared_out = {};
  std::vector<T> per_layer_gate = {};
  std::vector<T> per_layer_out = {};
  std::vector<T> per_layer_model = {};
  std::vector<T> side_router = {};
  std::vector<T> side_in = {};
  std::vector<T> side_out = {};

  // visit(T&) for every linear, in the order of the forward pass.
  template <typename Visit>
  void ForEach(Visit&& visit) {
    for (const LinearGroup group : kLinearGroups) {
      for (T& linear : GroupOf(*this, group)) visit(linear);
    }
  }
  template <typename Visit>
  void ForEach(Visit&& visit) const {
    for (const LinearGroup group : kLinearGroups) {
      for (const T& linear : GroupOf(*this, group)) visit(linear);
    }
  }
};

// The vector of a group other than kO.
template <typename Linears>
auto& VectorOf(Linears& linears, LinearGroup group) {
  switch (group) {
    case LinearGroup::kQkv:
    case LinearGroup::kO:
      break;
    case LinearGroup::kGateUp:
      return linears.gate_up;
    case LinearGroup::kDown:
      return linears.down;
    case LinearGroup::kSharedIn:
      return linears.shared_in;
    case LinearGroup::kSharedOut:
      return linears.shared_out;
    case LinearGroup::kPerLayerGate:
      return linears.per_layer_gate;
    case LinearGroup::kPerLayerOut:
      return linears.per_layer_out;
    case LinearGroup::kPerLayerModel:
      return linears.per_layer_model;
    case LinearGroup::kSideRouter:
      return linears.side_router;
    case LinearGroup::kSideIn:
      return linears.side_in;
    case LinearGroup::kSideOut:
      return linears.side_out;
  }
  return linears.qkv;
}

template <typename T>
std::span<const T> GroupOf(const PerLinear<T>& linears, LinearGroup group) {
  if (group == LinearGroup::kO) return {&linears.o, 1};
  return VectorOf(linears, group);
}
template <typename T>
std::span<T> GroupOf(PerLinear<T>& linears, LinearGroup group) {
  if (group == LinearGroup::kO) return {&linears.o, 1};
  return VectorOf(linears, group);
}

// Adds the next linear of a group.
template <typename T>
void Append(PerLinear<T>& linears, LinearGroup group, T linear) {
  if (group == LinearGroup::kO) {
    linears.o = std::move(linear);
  } else {
    VectorOf(linears, group).push_back(std::move(linear));
  }
}

// visit(a, b) for every linear of a layer, in the order of the forward pass.
template <typename A, typename B, typename Visit>
void ForEachPair(A&& a, B&& b, Visit&& visit) {
  for (const LinearGroup group : kLinearGroups) {
    const auto of_a = GroupOf(a, group);
    const auto of_b = GroupOf(b, group);
    for (std::size_t i = 0; i < of_a.size(); ++i) visit(of_a[i], of_b[i]);
  }
}

// fn(a, b) for every linear of a layer.
template <typename A, typename B, typename Fn>
auto Combine(A&& a, B&& b, Fn&& fn) {
  PerLinear<decltype(fn(a.o, b.o))> out;
  for (const LinearGroup group : kLinearGroups) {
    const auto of_a = GroupOf(a, group);
    const auto of_b = GroupOf(b, group);
    for (std::size_t i = 0; i < of_a.size(); ++i) Append(out, group, fn(of_a[i], of_b[i]));
  }
  return out;
}

// Names of the linears inside a layer: "self_attn.q_proj". The linear of the model
// (per_layer_model) is not inside: its name is that in the decoder.
PerLinear<std::string> LinearNames(const DecoderConfig& config, std::int64_t layer);
inline constexpr std::string_view kPerLayerModel = "per_layer_model_projection";
inline constexpr std::string_view kSideRouter = "router.proj";
// Module path of every linear of a layer as PEFT sees it: "model.layers.0.self_attn.q_proj".
PerLinear<std::string> LinearPaths(const DecoderConfig& config, std::int64_t layer);

// True for the linears of experts that the checkpoint and PEFT have as parameters of their layer
// (DecoderConfig::joins_experts).
bool IsJoinedExpert(const DecoderConfig& config, std::string_view path);
// The module inside a layer that has these parameters: "mlp.experts".
std::string JoinedExpertsName(const DecoderConfig& config);
// "gate_up_proj" or "down_proj": the parameter that holds the linear at `path` of such an expert.
std::string_view JoinedExpertParameter(const DecoderConfig& config, std::string_view path);
// True for a linear that stays in the type of the checkpoint, and is trained only where an option
// names it: the router of experts beside the MLP. Other routers are no linears here.
bool IsRouter(std::string_view path);

// The distinct names of all layers, in the order of the forward pass.
std::vector<std::string> DistinctLinearNames(const DecoderConfig& config);

// Name of the router inside a layer: "mlp.gate".
std::string RouterName(const DecoderConfig& config);
// Name of its bias, without ".weight" behind it: "feed_forward.expert_bias".
std::string ExpertBiasName(const DecoderConfig& config);

struct LinearShape {
  std::int64_t out = 0;
  std::int64_t in = 0;
};
PerLinear<LinearShape> ShapeLinears(const DecoderConfig& config, std::int64_t layer);
// Of all layers: the most outputs of one linear, and of all linears that share an input.
std::int64_t WidestLinear(const DecoderConfig& config);
std::int64_t WidestGroup(const DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_MODEL_LINEAR_SHAPES_H_
