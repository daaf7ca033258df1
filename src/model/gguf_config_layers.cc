#include "model/gguf_config_layers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/check.h"
#include "model/config_layers.h"
#include "model/families.h"

namespace qlora {
namespace {

// ---- Rotary embedding.

// Reads the divisors of the rotary frequencies (rotary_dim / 2).
std::vector<double> ReadDivisors(const GgufReader& file, const char* name, const RopeConfig& rope) {
  const TensorInfo* tensor = file.Find(name);
  if (tensor == nullptr) ThrowInvalidInput("{}: tensor '{}' is missing", file.where(), name);
  if (tensor->dtype != DType::kF32 || tensor->elements() != rope.rotary_dim / 2) {
    ThrowInvalidInput("{}: tensor '{}' must have {} values of F32, found {} of {}",
                      file.FileOf(*tensor), name, rope.rotary_dim / 2, tensor->elements(),
                      NameOf(tensor->dtype));
  }
  std::vector<float> values(static_cast<std::size_t>(tensor->elements()));
  std::memcpy(values.data(), file.Bytes(*tensor).data(), tensor->bytes());
  for (const float value : values) {
    if (value > 0 && std::isfinite(value)) continue;
    ThrowInvalidInput("{}: tensor '{}' holds {}, expected positive numbers", file.FileOf(*tensor),
                      name, value);
  }
  return {values.begin(), values.end()};
}

double Positive(const GgufKeys& keys, const char* key, double otherwise) {
  const double value = keys.Double(key, otherwise);
  if (!(value > 0 && std::isfinite(value))) {
    ThrowInvalidInput("{}: {} is {}, expected a positive number", keys.where(), key, value);
  }
  return value;
}

// llama.cpp computes YaRN with its own parameters, whatever these keys of its converter say.
void NoteYarn(const GgufKeys& keys, DecoderConfig& config) {
  struct Parameter {
    const char* key;
    double used;
  };
  for (const auto& [key, used] :
       {Parameter{"rope.scaling.yarn_beta_fast", 32}, Parameter{"rope.scaling.yarn_beta_slow", 1},
        Parameter{"rope.scaling.yarn_ext_factor", 1},
        Parameter{"rope.scaling.yarn_attn_factor", 1}}) {
    // Of any type: a key that is not followed cannot be wrong.
    const auto* value = keys.Unchecked<float>(key);
    if (value == nullptr || *value == static_cast<float>(used)) continue;
    config.notes.push_back(
        fmt::format("{} is {} and is taken for {}, as llama.cpp takes it", key, *value, used));
  }
}

// The positions of long texts are divided by a factor, all alike or as YaRN does it.
void ReadScaling(const GgufKeys& keys, const std::string& type, DecoderConfig& config,
                 RopeConfig& rope) {
  if (type == "none") return;
  rope.factor = keys.Double("rope.scaling.factor", keys.Double("rope.scale_linear", 0));
  if (rope.factor == 0) rope.factor = 1;
  if (!(rope.factor > 0 && std::isfinite(rope.factor))) {
    ThrowInvalidInput("{}: rope.scaling.factor is {}, expected a positive number", keys.where(),
                      rope.factor);
  }
  if (type == "yarn") {
    rope.type = RopeType::kYarn;
    rope.attention_factor *= 1 + 0.1 * std::log(rope.factor);
    if (config.model_type == "ministral3") {
      const double multiplier = keys.Double("rope.scaling.yarn_log_multiplier", 0);
      if (multiplier != 0) rope.attention_factor /= 1 + 0.1 * multiplier * std::log(rope.factor);
      // Its graph alone reads these.
      rope.beta_fast = Positive(keys, "rope.scaling.yarn_beta_fast", rope.beta_fast);
      rope.beta_slow = Positive(keys, "rope.scaling.yarn_beta_slow", rope.beta_slow);
    } else {
      NoteYarn(keys, config);
    }
  } else if (rope.factor != 1) {
    rope.type = RopeType::kLinear;
  }
}

// The divisors of files that have them: one list, or two between which the length decides.
void ReadFactors(const GgufKeys& keys, const std::string& type, const DecoderConfig& config,
                 RopeConfig& rope) {
  const GgufReader& file = keys.file();
  const bool is_phi3 = config.model_type == "phi3";
  const bool is_llama = config.model_type == "llama" || config.model_type == "mixtral";
  const bool has_two = file.Find("rope_factors_long.weight") != nullptr ||
                       file.Find("rope_factors_short.weight") != nullptr;
  if (type == "longrope" ? is_llama || is_phi3 : is_phi3 && has_two) {
    rope.long_factor = ReadDivisors(file, "rope_factors_long.weight", rope);
    rope.short_factor = ReadDivisors(file, "rope_factors_short.weight", rope);
    // A linear factor comes on top.
    const double factor = rope.type == RopeType::kLinear ? rope.factor : 1;
    for (double& divisor : rope.long_factor) divisor *= factor;
    for (double& divisor : rope.short_factor) divisor *= factor;
    if (rope.type == RopeType::kYarn) {
      ThrowInvalidInput("{}: rope.scaling.type yarn beside rope_factors is not supported",
                        keys.where());
    }
    rope.type = RopeType::kLongrope;
    rope.factor = 1;
  } else if (is_llama && file.Find("rope_freqs.weight") != nullptr) {
    rope.divisors = ReadDivisors(file, "rope_freqs.weight", rope);
  }
}

// The parts of a position of models that see, which text does not tell apart.
void ReadSections(const GgufKeys& keys, const DecoderConfig& config, RopeConfig& rope) {
  const bool sees = config.model_type == "qwen2_5_vl_text" ||
                    config.model_type == "qwen3_vl_text" ||
                    config.model_type.starts_with("qwen3_5");
  if (!sees && config.model_type != "glm4") return;
  std::vector<std::int64_t> sections = keys.List("rope.dimension_sections", 4);
  const bool has_sections = std::ranges::any_of(sections, [](std::int64_t n) { return n != 0; });
  if (config.model_type == "glm4" && has_sections) {
    ThrowInvalidInput(
        "{}: rope.dimension_sections is set: the rows of q and k of a GLM-4 that sees have another "
        "order, which is not supported",
        keys.where());
  }
  if (sees && has_sections) rope.mrope_section = std::move(sections);
}

RopeConfig ParseRope(const GgufKeys& keys, DecoderConfig& config) {
  RopeConfig rope;
  ReadSections(keys, config, rope);
  rope.interleaved = FamilyOf(config.model_type, keys.where()).interleaved_rope;
  rope.rope_theta = Positive(keys, "rope.freq_base", 10000);
  rope.rotary_dim = keys.Int("rope.dimension_count", config.head_dim);
  const bool partial = config.model_type == "phi3" || config.model_type.starts_with("gemma") ||
                       config.model_type == "glm4" ||
                       FamilyOf(config.model_type, keys.where()).mixers == MixerRule::kDeltaRule;
  if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0 || rope.rotary_dim > config.head_dim ||
      (!partial && rope.rotary_dim != config.head_dim)) {
    ThrowInvalidInput("{}: rope.dimension_count {} of heads of {} is not possible in a {}",
                      keys.where(), rope.rotary_dim, config.head_dim, config.model_type);
  }
  const std::string type = keys.String("rope.scaling.type", "linear");
  if (type != "none" && type != "linear" && type != "yarn" && type != "longrope") {
    ThrowInvalidInput(
        "{}: rope.scaling.type '{}' is not supported; supported: none, linear, yarn, longrope",
        keys.where(), type);
  }
  rope.original_max_position_embeddings =
      keys.Int("rope.scaling.original_context_length", config.max_position_embeddings);
  if (rope.original_max_position_embeddings < 1) {
    ThrowInvalidInput("{}: rope.scaling.original_context_length must be positive", keys.where());
  }
  rope.attention_factor = Positive(keys, "rope.scaling.attn_factor", 1);
  ReadScaling(keys, type, config, rope);
  if (config.model_type == "ministral3") {
    rope.query_scale_beta = keys.Double("attention.temperature_scale", 0);
  }
  ReadFactors(keys, type, config, rope);
  return rope;
}

// The table of layers with a window. Gemma 3 rotates them with a base of their own, Olmo 3 with
// that of the others, both unscaled.
RopeConfig ParseLocalRope(const GgufKeys& keys, const DecoderConfig& config) {
  const RopeConfig& full = config.ropes[0];
  if (config.model_type == "gpt_oss") return full;
  RopeConfig local;
  local.rotary_dim = full.rotary_dim;
  if (config.model_type == "olmo3") {
    local.rope_theta = full.rope_theta;
  } else if (config.model_type == "gemma2") {
    local = full;
    local.rope_theta = Positive(keys, "rope.freq_base_swa", full.rope_theta);
  } else {
    local.rope_theta = Positive(keys, "rope.freq_base_swa", 10000);
    // Also where the factor is YaRN's: its own part is 1 without a scaling.
    local.attention_factor = Positive(keys, "rope.scaling.attn_factor", 1);
  }
  return local;
}

// ---- Windows.

// Returns the test of a layer for a window: by a period, or by a list.
std::function<bool(std::int64_t)> WindowPattern(const GgufKeys& keys, std::int64_t period,
                                                std::int64_t blocks) {
  constexpr const char* kKey = "attention.sliding_window_pattern";
  std::vector<std::int64_t> list = keys.List(kKey, blocks);
  if (!list.empty()) {
    return [list = std::move(list)](std::int64_t l) { return list[l] != 0; };
  }
  period = keys.Int(kKey, period);
  return [period](std::int64_t l) { return period == 0 || l % period < period - 1; };
}

// Sets the layers whose mixer is not attention, none of which rotates.
void SetMixers(const GgufKeys& keys, std::int64_t blocks, DecoderConfig& config) {
  const MixerRule mixers = FamilyOf(config.model_type, keys.where()).mixers;
  if (mixers == MixerRule::kShortConv) {
    const std::vector<std::int64_t> heads = HeadsOfLfm(keys, blocks);
    for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
      if (heads[l] == 0) config.layers[l] = {.rope = -1, .mixer = Mixer::kShortConv};
    }
  }
  if (mixers == MixerRule::kDeltaRule) {
    const std::int64_t interval = keys.Int("full_attention_interval", 4);
    if (interval < 1) {
      ThrowInvalidInput("{}: full_attention_interval is 0, expected 1 or more", keys.where());
    }
    for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
      const bool attends = (l + 1) % interval == 0;
      if (!attends) config.layers[l] = {.rope = -1, .mixer = Mixer::kDeltaRule};
    }
  }
}

}  // namespace

std::vector<std::int64_t> HeadsOfLfm(const GgufKeys& keys, std::int64_t blocks) {
  std::vector<std::int64_t> heads = keys.List("attention.head_count_kv", blocks);
  // One number: all layers attend.
  if (heads.empty()) heads.assign(blocks, keys.Int("attention.head_count_kv"));
  std::int64_t most = 0;
  for (const std::int64_t count : heads) {
    if (count < 0 || (count != 0 && most != 0 && count != most)) {
      ThrowInvalidInput("{}: attention.head_count_kv has {} and {}, expected one number and zeros",
                        keys.where(), most, count);
    }
    most = std::max(most, count);
  }
  return heads;
}

void ParseGgufLayers(const GgufKeys& keys, std::int64_t blocks, DecoderConfig& config) {
  config.ropes.push_back(ParseRope(keys, config));
  config.layers.resize(config.num_hidden_layers);
  const Family& family = FamilyOf(config.model_type, keys.where());
  const bool is_gemma2 = config.model_type == "gemma2";
  const std::int64_t window = keys.Int("attention.sliding_window", is_gemma2 ? 4096 : 0);
  if (family.window == WindowRule::kPeriod) {
    const auto is_local = WindowPattern(keys, family.window_period, blocks);
    const RopeConfig local = ParseLocalRope(keys, config);
    const bool has_own_table = local != config.ropes[0] && window > 0;
    if (has_own_table) config.ropes.push_back(local);
    // Without a window there are no local layers, and one base.
    for (std::int64_t l = 0; window > 0 && l < config.num_hidden_layers; ++l) {
      if (is_local(l)) config.layers[l] = {.window = window, .rope = has_own_table ? 1 : 0};
    }
  } else if (window > 0 && window < config.max_position_embeddings) {
    config.notes.push_back(fmt::format(
        "attention.sliding_window {} is not applied, as in llama.cpp: tokens see all before them",
        window));
  }
  const bool rotates = config.model_type != "granite" || keys.Bool("rope.scaling.finetuned", true);
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    if (!rotates || (config.model_type == "smollm3" && l % 4 == 3)) config.layers[l].rope = -1;
  }
  SetMixers(keys, blocks, config);
  AddQueryRope(config);
}

}  // namespace qlora
