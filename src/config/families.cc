#include "config/families.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "base/spelling.h"
#include "base/text.h"
#include "config/family_table.h"

namespace qlora {
namespace {

// What models have that nothing here computes, by the model types that people ask for most.
struct Unsupported {
  std::string_view has;
  std::string_view model_types;  // separated by spaces
};
constexpr auto kUnsupported = std::to_array<Unsupported>({
    {"several residual streams at once (AltUp)", "gemma3n gemma3n_text"},
    {"layers of linear attention", "kimi_linear minimax"},
    {"latent attention (MLA)",
     "deepseek_v2 deepseek_v3 deepseek_v32 mistral4 kimi_k2 minicpm3 glm_moe_dsa"},
    {"state-space layers (Mamba)", "mamba mamba2 falcon_mamba falcon_h1 nemotron_h bamba jamba"},
    {"this kind of experts",
     "qwen2_moe llama4 llama4_text glm4_moe ernie4_5_moe granitemoe hunyuan_v1_moe"},
    {"experts in a model that sees", "qwen3_vl_moe"},
    {"LayerNorm", "gpt2 gpt_neox opt bloom falcon phi cohere cohere2 stablelm starcoder2"},
});

std::string WhatIsMissing(std::string_view model_type) {
  for (const Unsupported& some : kUnsupported) {
    if (!HasWord(some.model_types, model_type)) continue;
    return fmt::format(" (missing here: {})", some.has);
  }
  return "";
}

}  // namespace

const Wrapper* FindWrapper(std::string_view model_type) {
  const std::span<const Wrapper> all = AllWrappers();
  const auto found = std::ranges::find(all, model_type, &Wrapper::model_type);
  return found == all.end() ? nullptr : &*found;
}

const Family& FamilyOf(const std::string& model_type, const std::string& where) {
  for (const Family& family : AllFamilies()) {
    if (family.model_type == model_type) return family;
  }
  std::vector<std::string> known;
  for (const Family& family : AllFamilies()) known.emplace_back(family.model_type);
  for (const Wrapper& wrapper : AllWrappers()) known.emplace_back(wrapper.model_type);
  const std::string near = Nearest(model_type, known);
  ThrowInvalidInput("{}: model_type '{}' is not supported{}{}; supported: {}", where, model_type,
                    WhatIsMissing(model_type),
                    near.empty() ? "" : fmt::format("; the nearest name is '{}'", near),
                    SupportedModelTypes());
}

void ApplyFamily(const Family& family, DecoderConfig& config) {
  config.architecture = family.architecture;
  config.qk_norm = family.qk_norm;
  config.output_gate = family.output_gate;
  config.value_norm = config.layer_scalar = family.gemma4;
  config.input_norms = family.input_norms;
  config.post_norms = family.post_norms;
  config.fused_qkv = family.fused_qkv;
  config.fused_gate_up = family.fused_gate_up;
  config.fused_delta = family.fused_delta;
  config.names = family.names;
  config.sinks = config.moe.router_bias = config.moe.is_joined = family.gpt_oss;
  if (family.gpt_oss) config.mlp_bias = true;
}

std::string SupportedModelTypes() {
  std::string names;
  for (const Family& family : AllFamilies()) {
    if (!names.empty()) names += ", ";
    names += family.model_type;
  }
  return names;
}

}  // namespace qlora
