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

// What a name of ModuleNames is the name of.
struct Role {
  std::string_view ModuleNames::*name;
  std::string_view what;
  bool in_mlp = false;  // behind ModuleNames::mlp
};
constexpr auto kRoles = std::to_array<Role>({
    {&ModuleNames::embedding, "the embedding"},
    {&ModuleNames::final_norm, "the last norm"},
    {&ModuleNames::input_norm, "the norm before the mixer of tokens"},
    {&ModuleNames::post_attn_norm, "the norm behind the mixer of tokens"},
    {&ModuleNames::mlp_norm, "the norm before the MLP"},
    {&ModuleNames::post_mlp_norm, "the norm behind the MLP"},
    {&ModuleNames::qkv, "q, k and v of attention"},
    {&ModuleNames::q_norm, "the norm of queries"},
    {&ModuleNames::k_norm, "the norm of keys"},
    {&ModuleNames::attn_gate, "the gate of attention's output"},
    {&ModuleNames::o, "the last linear of attention"},
    {&ModuleNames::mlp, "the MLP"},
    {&ModuleNames::gate, "the gate of the MLP", true},
    {&ModuleNames::up, "the second linear of the MLP", true},
    {&ModuleNames::gate_up, "the first linear of the MLP", true},
    {&ModuleNames::down, "the last linear of the MLP", true},
    {&ModuleNames::router, "the router", true},
});

std::string ModulesOf(const Role& role, std::string_view name, const ModuleNames& chosen) {
  return role.in_mlp ? fmt::format("{}.{}", chosen.mlp, name) : std::string(name);
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

const GgufFamily& GgufFamilyOf(std::string_view model_type) {
  static constexpr GgufFamily kNone;
  const std::span<const Family> all = AllFamilies();
  const auto found = std::ranges::find(all, model_type, &Family::model_type);
  return found == all.end() ? kNone : found->gguf;
}

const Family* FindFamilyOfArchitecture(std::string_view architecture) {
  for (const Family& family : AllFamilies()) {
    if (family.gguf.architecture == architecture && !architecture.empty()) return &family;
  }
  return nullptr;
}

std::optional<Activation> ActivationNamed(std::string_view name) {
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_tanh") return Activation::kGeluTanh;
  if (name == "gelu") return Activation::kGelu;
  return std::nullopt;
}

std::string SupportedModelTypes() {
  std::string names;
  for (const Family& family : AllFamilies()) {
    if (!names.empty()) names += ", ";
    names += family.model_type;
  }
  return names;
}

bool HasSpellings(const Family& family) {
  return std::ranges::any_of(kRoles, [&](const Role& role) {
    return (family.names.*role.name).find(' ') != std::string_view::npos;
  });
}

ModuleNames SpelledNames(const Family& family,
                         const std::function<bool(std::string_view modules)>& has) {
  ModuleNames names;
  for (const Role& role : kRoles) {
    const std::vector<std::string_view> spellings = Words(family.names.*role.name);
    const auto found = std::ranges::find_if(spellings, [&](std::string_view spelling) {
      return has(ModulesOf(role, spelling, names));
    });
    names.*role.name = found == spellings.end() ? spellings.front() : *found;
  }
  return names;
}

std::string RoleOf(const DecoderConfig& config, std::string_view tensor) {
  const std::string path = fmt::format(".{}", tensor);
  for (const Role& role : kRoles) {
    const std::string_view chosen = config.names.*role.name;
    const std::string modules = fmt::format(".{}.", ModulesOf(role, chosen, config.names));
    if (role.name == &ModuleNames::mlp || path.find(modules) == std::string::npos) continue;
    const std::string_view spellings = FamilyOf(config.model_type, "").names.*role.name;
    return spellings == chosen ? std::string(role.what)
                               : fmt::format("{}, one of: {}", role.what, spellings);
  }
  return "";
}

}  // namespace qlora
