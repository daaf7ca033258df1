// Computes the rotary frequencies that config.json asks for.
#include "config/config_rope.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace qlora {
namespace {

// "su" and, where there are lists, "yarn" are names of longrope in early checkpoints of Phi-3,
// "dynamic" is Hunyuan's name of a default with another base.
RopeType RopeTypeNamed(std::string name, bool has_lists, const Family& family,
                       const std::string& where) {
  if (name == "su" || (name == "yarn" && has_lists)) name = "longrope";
  if (name == "dynamic" && family.model_type == "hunyuan_v1_dense") name = "default";
  // Positions of images have three parts, which are one number for text.
  if (name == "default" || name == "mrope") return RopeType::kDefault;
  if (name == "linear") return RopeType::kLinear;
  if (name == "llama3") return RopeType::kLlama3;
  if (name == "yarn") return RopeType::kYarn;
  if (name == "longrope") return RopeType::kLongrope;
  ThrowInvalidInput(
      "{}: rope_type '{}' is not supported; supported: default, linear, llama3, yarn, longrope",
      where, name);
}

// The type of a scaling, which files of two generations call "type" or "rope_type".
RopeType RopeTypeOf(const ConfigKeys& keys, const Family& family) {
  const std::string old = keys.String("type", "");
  const std::string name = keys.String("rope_type", old.empty() ? "default" : old);
  const bool has_lists = keys.Find("short_factor") != nullptr;
  const RopeType type = RopeTypeNamed(name, has_lists, family, keys.where());
  if (!old.empty() && RopeTypeNamed(old, has_lists, family, keys.where()) != type) {
    ThrowInvalidInput("{}: rope_type is '{}' and type is '{}'; remove the one that is wrong",
                      keys.where(), name, old);
  }
  return type;
}

// A kind of layers may have a factor of 0, which leaves its heads as they are.
bool MayStay(const Family& family) {
  return family.ropes_by_type && family.partial_rotation == PartialRotation::kFirstDims;
}

// Only the first dims of a head rotate in some models.
std::int64_t RotaryDim(const ConfigKeys& keys, const RopeDefaults& usual, const Family& family) {
  const double partial = keys.Double("partial_rotary_factor", usual.partial);
  if (partial == 0 && MayStay(family)) return 0;
  if (!(partial > 0 && partial <= 1)) {
    ThrowInvalidInput("{}: partial_rotary_factor is {}, expected more than 0 and at most 1",
                      keys.where(), partial);
  }
  return static_cast<std::int64_t>(static_cast<double>(usual.head_dim) * partial);
}

// Of the pairs of the whole head, only the first turn; the others stay.
void SetTurningPairs(double turning, const std::string& where, RopeConfig& rope) {
  if (!(turning > 0 && turning <= 1)) {
    ThrowInvalidInput("{}: partial_rotary_factor is {}, expected more than 0 and at most 1", where,
                      turning);
  }
  const std::int64_t pairs = rope.rotary_dim / 2;
  const auto turn = static_cast<std::int64_t>(turning * static_cast<double>(rope.rotary_dim) /
                                              2);  // rounded down
  if (turn == pairs) return;
  rope.divisors.assign(pairs, std::numeric_limits<double>::infinity());
  std::fill_n(rope.divisors.begin(), turn, 1.0);
}

// The class has no other scaling than a factor.
void ReadProportional(const ConfigKeys& keys, const Family& family, RopeConfig& rope) {
  const std::string type = keys.String("rope_type", "default");
  const double turning = keys.Double("partial_rotary_factor", 1);
  const bool is_plain =
      turning == 1 || family.partial_rotation == PartialRotation::kAlwaysFirstPairs;
  if (type != "proportional" && (type != "default" || !is_plain)) {
    ThrowInvalidInput(
        "{}: rope_type '{}' with partial_rotary_factor {} is not supported; supported: default "
        "without one, proportional",
        keys.where(), type, turning);
  }
  rope.rope_theta = keys.Double("rope_theta", 1e4);
  rope.factor = type == "proportional" ? keys.Double("factor", 1) : 1;
  if (!(rope.factor > 0)) ThrowInvalidInput("{}: factor must be positive", keys.where());
  if (rope.factor != 1) rope.type = RopeType::kLinear;
  SetTurningPairs(turning, keys.where(), rope);
}

// Long contexts are read with somewhat larger cos and sin. With L original positions and the
// extension f the factor is sqrt(1 + ln f / ln L).
void ReadLongrope(const ConfigKeys& keys, const DecoderConfig& config, RopeConfig& rope) {
  rope.short_factor = keys.Doubles("short_factor", rope.rotary_dim / 2);
  rope.long_factor = keys.Doubles("long_factor", rope.rotary_dim / 2);
  const auto original = static_cast<double>(rope.original_max_position_embeddings);
  const double f =
      keys.Double("factor", static_cast<double>(config.max_position_embeddings) / original);
  const double otherwise = f <= 1 ? 1 : std::sqrt(1 + std::log(f) / std::log(original));
  rope.attention_factor = keys.Double("attention_factor", otherwise);
}

// With the extension f, cos and sin are multiplied by 0.1 m ln f + 1, or by the ratio of two such
// factors where the model gives two m (DeepSeek's keys).
void ReadYarn(const ConfigKeys& keys, RopeConfig& rope) {
  rope.beta_fast = keys.Double("beta_fast", 32.0);
  rope.beta_slow = keys.Double("beta_slow", 1.0);
  rope.truncate = keys.Bool("truncate", true);
  const auto magnitude = [&](double mscale) {
    return rope.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(rope.factor) + 1.0;
  };
  double otherwise = magnitude(1.0);
  if (keys.Double("mscale", 0) != 0 && keys.Double("mscale_all_dim", 0) != 0) {
    otherwise = magnitude(keys.Double("mscale")) / magnitude(keys.Double("mscale_all_dim"));
  }
  rope.attention_factor = keys.Double("attention_factor", otherwise);
}

// Hunyuan's "dynamic" is another base, of a setting that stands beside it. Without that setting it
// is a base that grows with the text, as in other models.
void ReadHunyuanBase(const ConfigKeys& keys, const DecoderConfig& config, RopeConfig& rope) {
  const std::string type = keys.String("rope_type", keys.String("type", "default"));
  const double alpha = keys.Double("alpha", 0);
  const bool is_dynamic = type == "dynamic";
  if (is_dynamic ? alpha == 0 && keys.Double("factor", 1) != 1 : alpha != 0) {
    ThrowInvalidInput(
        "{}: alpha is {} and rope_type '{}'; supported are 'dynamic' with an alpha, and other "
        "types "
        "without",
        keys.where(), alpha, type);
  }
  const auto dim = static_cast<double>(config.head_dim);
  if (alpha != 0) rope.rope_theta *= std::pow(alpha, dim / (dim - 2));
}

// Ministral 3: queries grow with their position, whatever the type of the scaling.
void ReadQueryScale(const ConfigKeys& keys, const ConfigKeys& model, const DecoderConfig& config,
                    RopeConfig& rope) {
  rope.query_scale_beta = keys.Double("llama_4_scaling_beta", 0);
  rope.original_max_position_embeddings =
      keys.Int("original_max_position_embeddings",
               model.Int("original_max_position_embeddings", config.max_position_embeddings));
  if (rope.query_scale_beta != 0 && rope.original_max_position_embeddings < 1) {
    ThrowInvalidInput("{}: original_max_position_embeddings must be positive", keys.where());
  }
}

// The same value of one setting in two places of a file, or in one place alone.
void CheckSame(const ConfigKeys& keys, const ConfigKeys& model, const char* key) {
  const Json* inner = keys.Find(key);
  const Json* outer = model.Find(key);
  if (inner == nullptr || outer == nullptr || *inner == *outer) return;
  ThrowInvalidInput("{}: {} is {}, and outside of it {}; remove the one that is wrong",
                    keys.where(), key, FormatJson(*inner), FormatJson(*outer));
}

// keys: the scaling. model: the whole file.
void ReadScaling(const ConfigKeys& keys, const ConfigKeys& model, const Family& family,
                 const RopeDefaults& usual, const DecoderConfig& config, RopeConfig& rope) {
  for (const char* layers : {"full_attention", "sliding_attention"}) {
    if (keys.Find(layers) != nullptr) {
      ThrowInvalidInput("{}: '{}' has separate settings, which {} does not support", keys.where(),
                        layers, family.model_type);
    }
  }
  CheckSame(keys, model, "partial_rotary_factor");
  CheckSame(keys, model, "original_max_position_embeddings");
  if (usual.theta_key != nullptr && keys.Find("rope_theta") != nullptr &&
      model.Find(usual.theta_key) && keys.Double("rope_theta") != usual.theta) {
    ThrowInvalidInput("{}: rope_theta is {}, and {} outside of it {}; remove the one that is wrong",
                      keys.where(), keys.Double("rope_theta"), usual.theta_key, usual.theta);
  }
  rope.rope_theta = keys.Double("rope_theta", rope.rope_theta);
  if (keys.Find("mrope_section") != nullptr) rope.mrope_section = keys.Ints("mrope_section");
  if (keys.Find("partial_rotary_factor") != nullptr) {
    rope.rotary_dim = RotaryDim(keys, usual, family);
  }
  if (family.model_type == "hunyuan_v1_dense") ReadHunyuanBase(keys, config, rope);
  rope.type = RopeTypeOf(keys, family);
  if (family.query_scale) ReadQueryScale(keys, model, config, rope);
  if (rope.type == RopeType::kDefault) return;

  rope.original_max_position_embeddings =
      keys.Int("original_max_position_embeddings",
               model.Int("original_max_position_embeddings", config.max_position_embeddings));
  if (rope.original_max_position_embeddings < 1) {
    ThrowInvalidInput("{}: original_max_position_embeddings must be positive", keys.where());
  }
  if (rope.type == RopeType::kLongrope) return ReadLongrope(keys, config, rope);
  rope.factor = keys.Double("factor");
  if (!(rope.factor > 0)) ThrowInvalidInput("{}: factor must be positive", keys.where());
  if (rope.type == RopeType::kLlama3) {
    rope.low_freq_factor = keys.Double("low_freq_factor");
    rope.high_freq_factor = keys.Double("high_freq_factor");
  }
  if (rope.type == RopeType::kYarn) ReadYarn(keys, rope);
}

// Whatever was stated and computed.
void CheckRope(const RopeConfig& rope, std::int64_t head_dim, bool may_stay,
               const std::string& where) {
  if (!(rope.rope_theta > 0 && std::isfinite(rope.rope_theta))) {
    ThrowInvalidInput("{}: rope_theta is {}, expected a positive number", where, rope.rope_theta);
  }
  const bool stays = rope.rotary_dim == 0 && may_stay;
  if (!stays && (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0 || rope.rotary_dim > head_dim)) {
    ThrowInvalidInput("{}: {} rotary dims of a head_dim of {} are not possible", where,
                      rope.rotary_dim, head_dim);
  }
  const auto check = [&](const char* key, double value) {
    if (std::isfinite(value)) return;
    ThrowInvalidInput("{}: {} of the rotary embedding is {}, expected a finite number", where, key,
                      value);
  };
  check("factor", rope.factor);
  check("low_freq_factor", rope.low_freq_factor);
  check("high_freq_factor", rope.high_freq_factor);
  check("beta_fast", rope.beta_fast);
  check("beta_slow", rope.beta_slow);
  check("attention_factor", rope.attention_factor);
  check("llama_4_scaling_beta", rope.query_scale_beta);
  for (const double factor : rope.short_factor) check("short_factor", factor);
  for (const double factor : rope.long_factor) check("long_factor", factor);
}

}  // namespace

void CheckOneRopeSetting(const Json& parameters, const Json& scaling, const Family& family,
                         const std::string& where) {
  if (!parameters.is_object() || !scaling.is_object()) return;
  const ConfigKeys newer(parameters, where + " (rope_parameters)");
  const ConfigKeys older(scaling, where + " (rope_scaling)");
  const auto refuse = [&](std::string_view key) {
    ThrowInvalidInput(
        "{}: rope_parameters and rope_scaling contradict each other in '{}': {} and {}; remove the "
        "one that is wrong",
        where, key, FormatJson(parameters), FormatJson(scaling));
  };
  if (RopeTypeOf(newer, family) != RopeTypeOf(older, family)) refuse("rope_type");
  for (const auto& [key, value] : scaling.items()) {
    if (key == "type" || key == "rope_type" || value.is_null()) continue;
    const Json* other = newer.Find(key.c_str());
    if (other == nullptr || *other != value) refuse(key);
  }
}

RopeConfig ParseRope(const Json* scaling, const RopeDefaults& usual, const ConfigKeys& model,
                     const Family& family, const DecoderConfig& config) {
  RopeConfig rope;
  const bool of_whole_head = family.partial_rotation != PartialRotation::kFirstDims;
  rope.rope_theta = usual.theta;
  rope.rotary_dim = of_whole_head ? usual.head_dim : RotaryDim(model, usual, family);
  rope.interleaved = family.interleaved_rope;
  if (scaling == nullptr) {
    if (of_whole_head) SetTurningPairs(usual.partial, model.where(), rope);
  } else {
    if (!scaling->is_object()) {
      ThrowInvalidInput("{}: the rope scaling must be an object", model.where());
    }
    const char* const place =
        model.Find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
    const ConfigKeys keys(*scaling, fmt::format("{} ({})", model.where(), place));
    if (of_whole_head) {
      ReadProportional(keys, family, rope);
    } else {
      ReadScaling(keys, model, family, usual, config, rope);
    }
  }
  CheckRope(rope, usual.head_dim, MayStay(family), model.where());
  return rope;
}

}  // namespace qlora
