// The linears of a layer: their places, names and shapes.
#ifndef QLORA_MODEL_LINEAR_SHAPES_H_
#define QLORA_MODEL_LINEAR_SHAPES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace qlora {

// One T for each linear of a layer: weights, adapters and gradients share this shape. qkv holds the
// linears that the mixer of tokens reads the layer's input with: q, k and v of attention, or its
// parts of a delta rule or of a short convolution; o is the mixer's last linear. qkv and gate_up
// hold one entry where the family fuses them (Phi-3), otherwise three and two. With E
// experts, gate_up holds gate and up of expert 0, of expert 1 ... (2E), and down holds E entries,
// otherwise one.
template <typename T>
struct PerLinear {
  std::vector<T> qkv;
  T o{};
  std::vector<T> gate_up;
  std::vector<T> down;

  // visit(T&) for every linear, in the order of the forward pass.
  template <typename Self, typename Visit>
  static void ForEachOf(Self& self, Visit&& visit) {
    for (auto& linear : self.qkv) visit(linear);
    visit(self.o);
    for (auto& linear : self.gate_up) visit(linear);
    for (auto& linear : self.down) visit(linear);
  }
  template <typename Visit>
  void ForEach(Visit&& visit) {
    ForEachOf(*this, visit);
  }
  template <typename Visit>
  void ForEach(Visit&& visit) const {
    ForEachOf(*this, visit);
  }
};

// fn(a, b) for every linear of a layer.
template <typename A, typename B, typename Fn>
auto Combine(A&& a, B&& b, Fn&& fn) {
  PerLinear<decltype(fn(a.o, b.o))> out;
  for (std::size_t i = 0; i < a.qkv.size(); ++i) out.qkv.push_back(fn(a.qkv[i], b.qkv[i]));
  out.o = fn(a.o, b.o);
  for (std::size_t i = 0; i < a.gate_up.size(); ++i) {
    out.gate_up.push_back(fn(a.gate_up[i], b.gate_up[i]));
  }
  for (std::size_t i = 0; i < a.down.size(); ++i) out.down.push_back(fn(a.down[i], b.down[i]));
  return out;
}

// visit(a, b) for every linear of a layer, in the order of the forward pass.
template <typename A, typename B, typename Visit>
void ForEachPair(A&& a, B&& b, Visit&& visit) {
  for (std::size_t i = 0; i < a.qkv.size(); ++i) visit(a.qkv[i], b.qkv[i]);
  visit(a.o, b.o);
  for (std::size_t i = 0; i < a.gate_up.size(); ++i) visit(a.gate_up[i], b.gate_up[i]);
  for (std::size_t i = 0; i < a.down.size(); ++i) visit(a.down[i], b.down[i]);
}

// The linears of a layer that read the same input.
enum class LinearGroup : std::uint8_t { kQkv, kO, kGateUp, kDown };

template <typename T>
std::span<const T> GroupOf(const PerLinear<T>& linears, LinearGroup group) {
  switch (group) {
    case LinearGroup::kQkv:
      return linears.qkv;
    case LinearGroup::kO:
      return {&linears.o, 1};
    case LinearGroup::kGateUp:
      return linears.gate_up;
    case LinearGroup::kDown:
      break;
  }
  return linears.down;
}

// Names of the linears inside a layer: "self_attn.q_proj".
PerLinear<std::string> LinearNames(const DecoderConfig& config, std::int64_t layer);
// Module path of every linear of a layer as PEFT sees it: "model.layers.0.self_attn.q_proj".
PerLinear<std::string> LinearPaths(const DecoderConfig& config, std::int64_t layer);

// True for the linears of experts that the checkpoint and PEFT have as parameters of their layer
// (MoeConfig::is_joined).
bool IsJoinedExpert(const DecoderConfig& config, std::string_view path);

// The distinct names of all layers, in the order of the forward pass.
std::vector<std::string> DistinctLinearNames(const DecoderConfig& config);

// Name of the router inside a layer: "mlp.gate".
std::string RouterName(const DecoderConfig& config);

struct LinearShape {
  std::int64_t out = 0;
  std::int64_t in = 0;
};
PerLinear<LinearShape> ShapeLinears(const DecoderConfig& config, std::int64_t layer);
// Of all layers: the most inputs of one linear, the most outputs of one linear, and the most
// outputs of all linears that share an input.
std::int64_t WidestInput(const DecoderConfig& config);
std::int64_t WidestLinear(const DecoderConfig& config);
std::int64_t WidestGroup(const DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_MODEL_LINEAR_SHAPES_H_
