#include "config/gguf_config_rope.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "config/gguf_config_json.h"
#include "config/gguf_names.h"
#include "io/json.h"

namespace qlora {
namespace {

constexpr const char* kType = "rope.scaling.type";
constexpr const char* kLogMultiplier = "rope.scaling.yarn_log_multiplier";
constexpr const char* kGrowth = "attention.temperature_scale";

// Below the resolution of the float32 that llama.cpp reads.
constexpr double kSame = 1e-6;

std::uint32_t U32(std::int64_t value) { return static_cast<std::uint32_t>(value); }

// none, linear, yarn or longrope.
std::string RopeScalingType(const GgufKeys& keys) {
  std::string type = keys.String(kType, "linear");
  if (type == "none" || type == "linear" || type == "yarn" || type == "longrope") return type;
  ThrowInvalidInput(
      "{}: rope.scaling.type '{}' is not supported; supported: none, linear, yarn, longrope",
      keys.where(), type);
}

// The tensor (pairs) that divides the frequencies.
// stays: infinity is a divisor.
std::vector<double> ReadDivisors(const GgufReader& file, const std::string& name,
                                 std::int64_t pairs, bool stays) {
  const TensorInfo* tensor = file.Find(name);
  if (tensor == nullptr) ThrowInvalidInput("{}: tensor '{}' is missing", file.where(), name);
  if (tensor->dtype != DType::kF32 || tensor->elements() != pairs) {
    ThrowInvalidInput("{}: tensor '{}' must have {} values of F32, found {} of {}",
                      file.FileOf(*tensor), name, pairs, tensor->elements(), NameOf(tensor->dtype));
  }
  std::vector<float> values(pairs);
  std::memcpy(values.data(), file.Bytes(*tensor).data(), tensor->bytes());
  for (const float value : values) {
    if (value > 0 && (stays || std::isfinite(value))) continue;
    ThrowInvalidInput("{}: tensor '{}' holds {}, expected positive numbers", file.FileOf(*tensor),
                      name, value);
  }
  return {values.begin(), values.end()};
}

std::int64_t OriginalLength(const GgufKeys& keys, const Json& json) {
  const std::int64_t length =
      keys.Int(gguf_key::kOriginal, NumberAt(json, "max_position_embeddings"));
  if (length < 1) {
    ThrowInvalidInput("{}: rope.scaling.original_context_length must be positive", keys.where());
  }
  return length;
}

Json Yarn(const GgufKeys& keys, const Family& family, double factor) {
  double attention_factor = keys.Positive(gguf_key::kAttention, 1) * (1 + 0.1 * std::log(factor));
  // llama.cpp computes YaRN with its own parameters, whatever the keys of its converter say, but in
  // the graph of families whose queries grow.
  double beta_fast = 32;
  double beta_slow = 1;
  if (family.query_scale) {
    const double multiplier = keys.Double(kLogMultiplier, 0);
    if (multiplier != 0) attention_factor /= 1 + 0.1 * multiplier * std::log(factor);
    beta_fast = keys.Positive(gguf_key::kBetaFast, beta_fast);
    beta_slow = keys.Positive(gguf_key::kBetaSlow, beta_slow);
  }
  return {{"rope_type", "yarn"},
          {"factor", factor},
          {"beta_fast", beta_fast},
          {"beta_slow", beta_slow},
          {"attention_factor", attention_factor}};
}

Json Longrope(const GgufKeys& keys, std::int64_t pairs, double factor) {
  Json scaling = {{"rope_type", "longrope"},
                  {"attention_factor", keys.Positive(gguf_key::kAttention, 1)}};
  for (const char* list : {"long", "short"}) {
    std::vector<double> divisors =
        ReadDivisors(keys.file(), fmt::format("rope_factors_{}.weight", list), pairs, false);
    for (double& divisor : divisors) divisor *= factor;  // comes on top
    scaling[fmt::format("{}_factor", list)] = std::move(divisors);
  }
  return scaling;
}

// The positions of long texts are divided by a factor, all alike or as YaRN does it, or by lists.
Json Scaling(const GgufKeys& keys, const Family& family, std::int64_t rotary, const Json& json) {
  const std::string type = RopeScalingType(keys);
  const double stated = keys.Double(gguf_key::kFactor, keys.Double(gguf_key::kLinear, 0));
  const double factor = type == "none" || stated == 0 ? 1 : stated;
  if (!(factor > 0 && std::isfinite(factor))) {
    ThrowInvalidInput("{}: rope.scaling.factor is {}, expected a positive number", keys.where(),
                      factor);
  }
  const bool has_lists = HasFactorLists(keys, family);
  if (has_lists && type == "yarn") {
    ThrowInvalidInput("{}: rope.scaling.type yarn beside rope_factors is not supported",
                      keys.where());
  }
  Json scaling = {{"rope_type", "default"}};
  if (type == "yarn") {
    scaling = Yarn(keys, family, factor);
  } else if (has_lists) {
    scaling = Longrope(keys, rotary / 2, factor);
  } else if (factor != 1) {
    scaling = {{"rope_type", "linear"}, {"factor", factor}};
  }
  const bool counts = type == "yarn" || has_lists || family.query_scale;
  if (counts) scaling["original_max_position_embeddings"] = OriginalLength(keys, json);
  return scaling;
}

// The parts of a position of models that see, which text does not tell apart.
void AddSections(const GgufKeys& keys, const Family& family, Json& scaling) {
  if (family.gguf.sections == PositionSections::kNone) return;
  const std::vector<std::int64_t> sections = keys.List(gguf_key::kSections, 4);
  if (std::ranges::all_of(sections, [](std::int64_t n) { return n == 0; })) return;
  if (family.gguf.sections == PositionSections::kRefused) {
    ThrowInvalidInput(
        "{}: rope.dimension_sections is set: the rows of q and k of a GLM-4 that sees have another "
        "order, which is not supported",
        keys.where());
  }
  scaling["mrope_section"] = sections;
}

// The dims of a head that rotate.
std::int64_t RotaryDim(const GgufKeys& keys, const Family& family, const char* key,
                       std::int64_t otherwise, std::int64_t head_dim) {
  const std::int64_t rotary = keys.Int(key, otherwise);
  const std::int64_t least = family.ropes_by_type ? 0 : 2;
  const bool is_part = rotary >= least && rotary < head_dim && rotary % 2 == 0;
  if (rotary == head_dim || (family.gguf.rotates_partly && is_part)) return rotary;
  ThrowInvalidInput("{}: {} {} of heads of {} is not possible in a {}", keys.where(), key, rotary,
                    head_dim, family.model_type);
}

// The least partial_rotary_factor with which as many pairs turn.
double TurningPart(const std::vector<double>& turns, std::int64_t pairs) {
  const auto stays = std::ranges::count(turns, std::numeric_limits<double>::infinity());
  return LeastFactor(2 * (pairs - stays), 2 * pairs);
}

// Of a family whose kinds of layers have rotary settings of their own.
void AddRopesByType(const GgufKeys& keys, const Family& family, Json& json) {
  if (const std::string type = keys.String(kType, "none"); type != "none") {
    ThrowInvalidInput("{}: rope.scaling.type '{}' is not supported in a {}", keys.where(), type,
                      family.model_type);
  }
  const bool of_whole_head = family.partial_rotation != PartialRotation::kFirstDims;
  const char* const size = family.gemma4 ? "global_head_dim" : "head_dim";
  const std::int64_t head_dim = NumberAt(json, size);
  const double theta = keys.Positive(gguf_key::kBase, 10000);
  const bool needs_base = family.gguf.local_base == GgufLocalBase::kNeeded;
  const std::optional<double> usual = needs_base ? std::nullopt : std::optional(theta);
  Json full = {{"rope_type", of_whole_head ? "proportional" : "default"}, {"rope_theta", theta}};
  Json sliding = {{"rope_type", "default"},
                  {"rope_theta", keys.Positive(gguf_key::kLocalBase, usual)}};
  const std::int64_t rotary = RotaryDim(keys, family, gguf_key::kDims, head_dim, head_dim);
  if (of_whole_head) {
    full["partial_rotary_factor"] = TurningPart(ReadTurns(keys.file(), rotary / 2), rotary / 2);
  } else {
    const std::int64_t local = RotaryDim(keys, family, gguf_key::kLocalDims, rotary, head_dim);
    full["partial_rotary_factor"] = LeastFactor(rotary, head_dim);
    sliding["partial_rotary_factor"] = LeastFactor(local, head_dim);
  }
  json["rope_parameters"] = {{"full_attention", std::move(full)},
                             {"sliding_attention", std::move(sliding)}};
}

// Layers that do not rotate, where a file lists them (Granite SWA).
void AddStayingLayers(const GgufKeys& keys, double theta, Json& json) {
  const std::vector<std::int64_t> rotates = keys.List(gguf_key::kRotating, keys.blocks());
  if (std::ranges::count(rotates, 0) == 0) return;
  for (const std::int64_t turns : rotates) {
    json["layer_rope_theta"].push_back(turns != 0 ? theta : 0.0);
  }
}

void WriteStayingLayers(const DecoderConfig& config, const std::string& prefix, GgufMetadata& out) {
  std::vector<bool> rotates;
  for (const LayerConfig& layer : config.layers) rotates.push_back(layer.rope >= 0);
  if (std::ranges::count(rotates, false) > 0)
    out.Add(prefix + gguf_key::kRotating, std::move(rotates));
}

// Of scalings that have none of their own: a file that was read may have one.
void AddAttentionFactor(double factor, const std::string& prefix, GgufMetadata& out) {
  if (factor != 1) out.Add(prefix + gguf_key::kAttention, static_cast<float>(factor));
}

// Of layers with a window, which may have a base of their own, and other dims that rotate.
void AddLocalRope(const DecoderConfig& config, const std::string& prefix, GgufMetadata& out) {
  const Family& family = FamilyOf(config.model_type, "");
  const GgufLocalBase base = family.gguf.local_base;
  if (config.ropes.size() < 2 || base == GgufLocalBase::kUnread) return;
  const RopeConfig& rope = config.ropes[0];
  const RopeConfig& local = config.ropes[1];
  const double usual = base == GgufLocalBase::kOf10000 ? 1e4 : rope.rope_theta;
  if (base == GgufLocalBase::kNeeded || local.rope_theta != usual) {
    out.Add(prefix + gguf_key::kLocalBase, static_cast<float>(local.rope_theta));
  }
  if (local.rotary_dim != rope.rotary_dim || family.gemma4) {
    out.Add(prefix + gguf_key::kLocalDims, U32(local.rotary_dim));
  }
}

}  // namespace

bool HasFactorLists(const GgufKeys& keys, const Family& family) {
  const bool is_phi3 = family.gguf.always_reads_factors;
  if (RopeScalingType(keys) == "longrope") return family.gguf.is_llama || is_phi3;
  return is_phi3 && (keys.file().Find(kGgufLongFactors) != nullptr ||
                     keys.file().Find(kGgufShortFactors) != nullptr);
}

std::vector<double> ReadTurns(const GgufReader& file, std::int64_t pairs) {
  std::vector<double> turns = ReadDivisors(file, kGgufDivisors, pairs, true);
  for (double& divisor : turns) {
    if (divisor >= kGgufStays) divisor = std::numeric_limits<double>::infinity();
  }
  if (std::ranges::count(turns, 1) == pairs) turns.clear();
  return turns;
}

void ReadGgufRope(const GgufKeys& keys, const Family& family, Json& json) {
  if (family.ropes_by_type) return AddRopesByType(keys, family, json);
  const std::int64_t head_dim = NumberAt(json, "head_dim");
  const std::int64_t rotary = RotaryDim(keys, family, gguf_key::kDims, head_dim, head_dim);
  if (rotary != head_dim || family.partial_rotary_factor != 1) {
    json["partial_rotary_factor"] = LeastFactor(rotary, head_dim);
  }
  const double theta = keys.Positive(gguf_key::kBase, 10000);
  Json scaling = Scaling(keys, family, rotary, json);
  AddSections(keys, family, scaling);
  if (family.query_scale) {
    // Its class is of the generation that has this spelling alone.
    scaling["rope_theta"] = theta;
    scaling["llama_4_scaling_beta"] = keys.Double(kGrowth, 0);
    json["rope_parameters"] = std::move(scaling);
    return;
  }
  json["rope_theta"] = theta;
  if (family.layer_thetas) AddStayingLayers(keys, theta, json);
  // A gpt-oss without a scaling would have one.
  const bool is_usual = scaling == Json{{"rope_type", "default"}} && !family.gpt_oss;
  json["rope_scaling"] = is_usual ? Json(nullptr) : std::move(scaling);
  if (family.gguf.local_base == GgufLocalBase::kOf10000) {
    json["rope_local_base_freq"] = keys.Positive(gguf_key::kLocalBase, 10000);
  }
}

void WriteGgufRope(const DecoderConfig& config, const std::string& prefix, GgufMetadata& out) {
  const RopeConfig& rope = config.ropes[0];
  const auto add = [&](const char* key, GgufValue value) {
    out.Add(prefix + key, std::move(value));
  };
  const Family& family = FamilyOf(config.model_type, "");
  if (config.ropes.back().query_scale_beta != 0) {
    add(kGrowth, static_cast<float>(config.ropes.back().query_scale_beta));
  }
  add(gguf_key::kDims, U32(rope.rotary_dim));
  add(gguf_key::kBase, static_cast<float>(rope.rope_theta));
  AddLocalRope(config, prefix, out);
  if (family.layer_thetas) WriteStayingLayers(config, prefix, out);
  if (!rope.mrope_section.empty() && !config.fused_delta) {
    std::vector<std::int32_t> sections(rope.mrope_section.begin(), rope.mrope_section.end());
    sections.resize(4);
    add(gguf_key::kSections, sections);
  }
  switch (rope.type) {
    case RopeType::kDefault:
    case RopeType::kLlama3:  // a tensor of divisors
      AddAttentionFactor(rope.attention_factor, prefix, out);
      break;
    case RopeType::kLinear:
      AddAttentionFactor(rope.attention_factor, prefix, out);
      add(kType, std::string("linear"));
      add(gguf_key::kFactor, static_cast<float>(rope.factor));
      break;
    case RopeType::kYarn:
      if (WritesYarnAsFactors(rope, family)) {
        add(gguf_key::kAttention, static_cast<float>(rope.attention_factor));
        break;
      }
      if (family.query_scale) {
        add(kLogMultiplier, GgufYarnLogMultiplier(rope));
        add(gguf_key::kBetaFast, static_cast<float>(rope.beta_fast));
        add(gguf_key::kBetaSlow, static_cast<float>(rope.beta_slow));
      } else if (const float factor = GgufYarnFactor(rope); factor != 1) {
        add(gguf_key::kAttention, factor);
      }
      add(kType, std::string("yarn"));
      add(gguf_key::kFactor, static_cast<float>(rope.factor));
      add(gguf_key::kOriginal, U32(rope.original_max_position_embeddings));
      break;
    case RopeType::kLongrope:
      add(kType, std::string("longrope"));
      add(gguf_key::kOriginal, U32(rope.original_max_position_embeddings));
      add(gguf_key::kAttention, static_cast<float>(rope.attention_factor));
      break;
  }
}

bool HasUsualGgufYarn(const RopeConfig& rope) {
  return rope.beta_fast == 32 && rope.beta_slow == 1 && rope.truncate && rope.factor >= 1;
}

bool WritesYarnAsFactors(const RopeConfig& rope, const Family& family) {
  const bool reads_divisors = family.gguf.divisors == GgufDivisors::kRead;
  return rope.type == RopeType::kYarn && reads_divisors && !HasUsualGgufYarn(rope);
}

float GgufYarnFactor(const RopeConfig& rope) {
  const double factor = rope.attention_factor / (1 + 0.1 * std::log(rope.factor));
  return std::abs(factor - 1) > kSame ? static_cast<float>(factor) : 1.0F;
}

float GgufYarnLogMultiplier(const RopeConfig& rope) {
  if (std::abs(rope.attention_factor - 1) <= kSame) return 1;
  if (GgufYarnFactor(rope) == 1) return 0;
  ThrowInvalidInput(
      "GGUF export of a ministral3: the attention_factor {} of yarn cannot be written: llama.cpp "
      "computes 1, or 1 + 0.1 ln(factor); export the model with --format hf instead",
      rope.attention_factor);
}

}  // namespace qlora
