#include "config/gguf_config.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/check.h"
#include "config/families.h"
#include "config/family_table.h"
#include "config/gguf_checked_keys.h"
#include "config/gguf_config_gemma4.h"
#include "config/gguf_config_json.h"
#include "config/gguf_config_rope.h"
#include "config/gguf_names.h"
#include "io/json.h"

namespace qlora {
namespace {

// "llama, qwen2, ...": what general.architecture may be.
std::string SupportedArchitectures() {
  std::string names;
  for (const Family& family : AllFamilies()) {
    // Several families have one architecture.
    if (FindFamilyOfArchitecture(family.gguf.architecture) != &family) continue;
    names += (names.empty() ? "" : ", ") + std::string(family.gguf.architecture);
  }
  return names;
}

// The first family of the architecture.
const Family& ArchitectureOf(const GgufReader& file) {
  if (const auto* type = file.Get<std::string>(kGgufType); type && *type != "model") {
    ThrowInvalidInput("{}: holds a part that is no model by itself (general.type '{}'){}",
                      file.where(), *type,
                      *type == "adapter" ? "; give its model here, and the file as --adapter"
                                         : "; give the file of the model");
  }
  const auto& name = file.Require<std::string>(kGgufArchitecture);
  if (name == "clip") {
    ThrowInvalidInput(
        "{}: holds an image encoder (general.architecture clip, an mmproj file); give the file of "
        "its language model",
        file.where());
  }
  if (const Family* family = FindFamilyOfArchitecture(name)) return *family;
  ThrowInvalidInput("{}: general.architecture '{}' is not supported; supported: {}", file.where(),
                    name, SupportedArchitectures());
}

// What Ollama's own converter writes, whose files llama.cpp does not read either: an encoder of
// images or sounds in the same file, and of Qwen3.5 other keys and names.
void CheckNotOfOllama(const GgufKeys& keys) {
  std::string sign;
  for (const TensorInfo& tensor : keys.file().tensors()) {
    for (const std::string_view begin : {"v.", "a.", "mm.", "mtp."}) {
      if (tensor.name.starts_with(begin)) sign = fmt::format("tensor '{}'", tensor.name);
    }
    if (GgufNameInBlock(tensor.name) == "ssm_dt") {
      sign = fmt::format("tensor '{}' without .bias", tensor.name);
    }
    if (!sign.empty()) break;
  }
  if (const auto* sections = keys.Unchecked<GgufArray>(gguf_key::kSections)) {
    const auto* numbers = std::get_if<std::vector<std::int32_t>>(sections);
    if (numbers != nullptr && numbers->size() == 3) sign = "rope.dimension_sections of 3 numbers";
  }
  if (sign.empty()) return;
  ThrowInvalidInput(
      "{}: is a file of Ollama's own converter ({}), which llama.cpp does not read; give the GGUF "
      "file of the language model alone that others converted, or its checkpoint",
      keys.where(), sign);
}

// Several families are one architecture: a number tells the second one.
struct SecondFamily {
  std::string_view first;
  const char* key;
  std::string_view second;  // empty: not supported
};
constexpr auto kSecondFamilies = std::to_array<SecondFamily>({
    {"llama", gguf_key::kExperts, "mixtral"},
    {"granite", gguf_key::kExperts, ""},
    {"olmo2", gguf_key::kWindow, "olmo3"},
});

const Family& FamilyOfFile(const GgufKeys& keys, const Family& architecture) {
  std::string_view model_type = architecture.model_type;
  for (const SecondFamily& row : kSecondFamilies) {
    if (row.first != model_type || keys.Int(row.key, 0) == 0) continue;
    if (row.second.empty()) {
      ThrowInvalidInput("{}: experts of a {} ({}) are not supported", keys.where(), row.first,
                        row.key);
    }
    model_type = row.second;
    break;
  }
  return FamilyOf(std::string(model_type), keys.where());
}

// ---- What no config.json states.

// llama.cpp computes YaRN with its own parameters, whatever these keys of its converter say.
void NoteYarn(const GgufKeys& keys, DecoderConfig& config) {
  struct Parameter {
    const char* key;
    float used;
  };
  for (const auto& [key, used] :
       {Parameter{gguf_key::kBetaFast, 32}, Parameter{gguf_key::kBetaSlow, 1},
        Parameter{"rope.scaling.yarn_ext_factor", 1},
        Parameter{"rope.scaling.yarn_attn_factor", 1}}) {
    // Of any type: a key that is not followed cannot be wrong.
    const auto* value = keys.Unchecked<float>(key);
    if (value == nullptr || *value == used) continue;
    config.notes.push_back(
        fmt::format("{} is {} and is taken for {}, as llama.cpp takes it", key, *value, used));
  }
}

void SetRopes(const GgufKeys& keys, const Family& family, DecoderConfig& config) {
  // A factor of cos and sin beside no scaling or a linear one.
  for (std::int64_t r = 0; r < std::ssize(config.ropes); ++r) {
    RopeConfig& rope = config.ropes[r];
    if (rope.type != RopeType::kDefault && rope.type != RopeType::kLinear) continue;
    if (r > 0 && family.gguf.plain_local) continue;
    rope.attention_factor = keys.Positive(gguf_key::kAttention, 1);
  }
  RopeConfig& full = config.ropes[0];
  if (family.gguf.divisors == GgufDivisors::kNeeded ||
      (family.gguf.divisors == GgufDivisors::kRead && !HasFactorLists(keys, family) &&
       keys.file().Find(kGgufDivisors) != nullptr)) {
    full.divisors = ReadTurns(keys.file(), full.rotary_dim / 2);
  }
  if (family.gguf.local_base == GgufLocalBase::kOfOthers && !family.local_rope) {
    RopeConfig local = full;
    local.rope_theta = keys.Positive(gguf_key::kLocalBase, full.rope_theta);
    const auto has_window = [](const LayerConfig& layer) { return layer.window > 0; };
    if (local != full && std::ranges::any_of(config.layers, has_window)) {
      config.ropes.push_back(local);
      for (LayerConfig& layer : config.layers) layer.rope = has_window(layer) ? 1 : 0;
    }
  }
  if (family.gguf.may_not_rotate && !keys.Bool(gguf_key::kFinetuned, true)) {
    for (LayerConfig& layer : config.layers) layer.rope = -1;
  }
}

// Changes what ParseDecoderConfig made of the keys.
void ApplyTensorsAndRules(const GgufKeys& keys, const Family& family, DecoderConfig& config) {
  const GgufBiases biases = BiasesOf(keys.file(), family.gguf);
  config.qkv_bias = biases.qkv;
  config.o_bias = biases.o;
  config.mlp_bias = biases.mlp || family.gpt_oss;
  config.one_plus_norm = false;
  if (family.may_lack_post_norms) {
    config.post_norms =
        HasInABlock(keys.file(), {"post_attention_norm.weight", "post_ffw_norm.weight"});
  }
  // Files of Qwen3-Next have the heads of values of the checkpoint.
  config.delta_rule.tiled = config.delta_rule.heads > 0 && !family.fused_delta;
  if (family.gemma4) return SetGgufGemma4Layers(keys, config);
  SetRopes(keys, family, config);
  if (config.ropes[0].type == RopeType::kYarn && !family.query_scale) NoteYarn(keys, config);
  const std::int64_t window = keys.Int(gguf_key::kWindow, 0);
  if (family.gguf.windows != GgufWindows::kIgnored) return;
  if (window > 0 && window < config.max_position_embeddings) {
    config.notes.push_back(fmt::format(
        "attention.sliding_window {} is not applied, as in llama.cpp: tokens see all before them",
        window));
  }
}

// ---- Checks of what config.json does not have.

void CheckHeads(const GgufKeys& keys, const Family& family, const DecoderConfig& config) {
  if (family.gguf.derived_heads &&
      config.num_attention_heads * config.head_dim != config.hidden_size) {
    ThrowInvalidInput("{}: {} heads of {} are not the embedding_length {}, as they are in a {}",
                      keys.where(), config.num_attention_heads, config.head_dim, config.hidden_size,
                      config.model_type);
  }
  if (config.delta_rule.heads == 0) return;
  const std::int64_t inner_size = keys.Int(gguf_key::kInnerSize);
  if (inner_size == config.delta_value_features()) return;
  ThrowInvalidInput(
      "{}: ssm.inner_size {} is not ssm.time_step_rank {} times ssm.state_size {}; heads of values "
      "of another size are not supported",
      keys.where(), inner_size, config.delta_rule.heads, config.delta_rule.value_dim);
}

}  // namespace

DecoderConfig ParseGgufConfig(const GgufReader& file) {
  const Family& architecture = ArchitectureOf(file);
  const GgufKeys keys(file, architecture.gguf.architecture);
  CheckNotOfOllama(keys);
  const Family& family = FamilyOfFile(keys, architecture);
  DecoderConfig config = ParseDecoderConfig(ConfigJsonOfKeys(keys, family), keys.where());
  CheckHeads(keys, family, config);
  CheckGgufKeys(keys, family, config);
  ApplyTensorsAndRules(keys, family, config);
  CheckLayerSizes(config, keys.where());
  return config;
}

Json GgufConfigJson(const GgufReader& file) {
  const Family& architecture = ArchitectureOf(file);
  const GgufKeys keys(file, architecture.gguf.architecture);
  return ConfigJsonOfKeys(keys, FamilyOfFile(keys, architecture));
}

}  // namespace qlora
