#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/check.h"
#include "io/bnb.h"
#include "io/json.h"
#include "model/families.h"

namespace qlora {
namespace {

// ---- Reading.

// The keys of one JSON object of config.json. Errors: InvalidInput naming the file and the key.
class Keys {
 public:
  Keys(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  // nullptr when absent or null.
  const Json* Find(const char* key) const { return FindJson(object_, key, where_); }
  bool IsNull(const char* key) const { return object_.contains(key) && object_.at(key).is_null(); }

  std::int64_t Int(const char* key) const { return JsonGet<std::int64_t>(object_, key, where_); }
  std::int64_t Int(const char* key, std::int64_t otherwise) const {
    return JsonGetOr(object_, key, otherwise, where_);
  }
  double Double(const char* key) const { return JsonGet<double>(object_, key, where_); }
  double Double(const char* key, double otherwise) const {
    return JsonGetOr(object_, key, otherwise, where_);
  }
  // A number, or 0 where the key is null.
  double DoubleOrNull(const char* key, double otherwise) const {
    return IsNull(key) ? 0.0 : Double(key, otherwise);
  }
  bool Bool(const char* key, bool otherwise) const {
    return JsonGetOr(object_, key, otherwise, where_);
  }
  std::string String(const char* key, const std::string& otherwise) const {
    return JsonGetOr(object_, key, otherwise, where_);
  }
  std::vector<std::string> Strings(const char* key) const {
    return JsonGet<std::vector<std::string>>(object_, key, where_);
  }
  std::vector<double> Doubles(const char* key, std::int64_t count) const {
    auto values = JsonGet<std::vector<double>>(object_, key, where_);
    if (static_cast<std::int64_t>(values.size()) != count) {
      ThrowInvalidInput("{}: key '{}' must have {} numbers, found {}", where_, key, count,
                        values.size());
    }
    return values;
  }

 private:
  const Json& object_;
  std::string where_;
};

Activation ActivationOf(const Keys& keys, const Family& family) {
  // Gemma configs carry a stale hidden_act next to the hidden_activation that counts.
  const char* const key = family.gemma ? "hidden_activation" : "hidden_act";
  const std::string name = keys.String(key, family.gemma ? "gelu_pytorch_tanh" : "silu");
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_tanh") return Activation::kGeluTanh;
  ThrowInvalidInput("{}: {} '{}' is not supported; supported: silu, gelu_pytorch_tanh",
                    keys.where(), key, name);
}

// "su" and Phi-3's "yarn" are names of longrope in early checkpoints of Phi-3.
RopeType RopeTypeOf(std::string name, const Family& family, const std::string& where) {
  if (name == "su" || (name == "yarn" && family.model_type == "phi3")) name = "longrope";
  if (name == "default") return RopeType::kDefault;
  if (name == "linear") return RopeType::kLinear;
  if (name == "llama3") return RopeType::kLlama3;
  if (name == "yarn") return RopeType::kYarn;
  if (name == "longrope") return RopeType::kLongrope;
  ThrowInvalidInput(
      "{}: rope_type '{}' is not supported; supported: default, linear, llama3, yarn, longrope",
      where, name);
}

// `scaling` is rope_scaling (transformers 4) or one rope_parameters dictionary (5), or null. Errors
// name the file, which of the two it is, and its key.
RopeConfig ParseRope(const Json* scaling, double theta, const Keys& model, const Family& family,
                     const DecoderConfig& config) {
  RopeConfig rope;
  rope.rope_theta = theta;
  const auto rotary_dim = [&](const Keys& keys) {
    const double partial = keys.Double("partial_rotary_factor", 1.0);
    if (!(partial > 0 && partial <= 1)) {
      ThrowInvalidInput("{}: partial_rotary_factor is {}, expected more than 0 and at most 1",
                        keys.where(), partial);
    }
    return static_cast<std::int64_t>(static_cast<double>(config.head_dim) * partial);
  };
  // Only the first dims of a head rotate in some models.
  rope.rotary_dim = rotary_dim(model);
  if (scaling == nullptr) return rope;
  if (!scaling->is_object()) {
    ThrowInvalidInput("{}: the rope scaling must be an object", model.where());
  }
  const char* const place =
      model.Find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  const Keys keys(*scaling, fmt::format("{} ({})", model.where(), place));
  for (const char* layers : {"full_attention", "sliding_attention"}) {
    if (keys.Find(layers) != nullptr) {
      ThrowInvalidInput("{}: '{}' has separate settings, which {} does not support", keys.where(),
                        layers, family.model_type);
    }
  }
  rope.rope_theta = keys.Double("rope_theta", theta);
  if (keys.Find("partial_rotary_factor") != nullptr) rope.rotary_dim = rotary_dim(keys);
  rope.type =
      RopeTypeOf(keys.String("rope_type", keys.String("type", "default")), family, keys.where());
  if (rope.type == RopeType::kDefault) return rope;

  rope.original_max_position_embeddings =
      keys.Int("original_max_position_embeddings",
               model.Int("original_max_position_embeddings", config.max_position_embeddings));
  const double original = static_cast<double>(rope.original_max_position_embeddings);
  if (original < 1) {
    ThrowInvalidInput("{}: original_max_position_embeddings must be positive", keys.where());
  }
  if (rope.type == RopeType::kLongrope) {
    rope.short_factor = keys.Doubles("short_factor", rope.rotary_dim / 2);
    rope.long_factor = keys.Doubles("long_factor", rope.rotary_dim / 2);
    // Long contexts are read with somewhat larger cos and sin. With L original positions and the
    // extension f the factor is sqrt(1 + ln f / ln L).
    const double f =
        keys.Double("factor", static_cast<double>(config.max_position_embeddings) / original);
    const double otherwise = f <= 1 ? 1 : std::sqrt(1 + std::log(f) / std::log(original));
    rope.attention_factor = keys.Double("attention_factor", otherwise);
    return rope;
  }
  rope.factor = keys.Double("factor");
  if (!(rope.factor > 0)) ThrowInvalidInput("{}: factor must be positive", keys.where());
  if (rope.type == RopeType::kLlama3) {
    rope.low_freq_factor = keys.Double("low_freq_factor");
    rope.high_freq_factor = keys.Double("high_freq_factor");
  }
  if (rope.type == RopeType::kYarn) {
    rope.beta_fast = keys.Double("beta_fast", 32.0);
    rope.beta_slow = keys.Double("beta_slow", 1.0);
    rope.truncate = keys.Bool("truncate", true);
    // With the extension f, cos and sin are multiplied by 0.1 m ln f + 1, or by the ratio of two
    // such factors where the model gives two m (DeepSeek's keys).
    const auto magnitude = [&](double mscale) {
      return rope.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(rope.factor) + 1.0;
    };
    double otherwise = magnitude(1.0);
    if (keys.Find("mscale") != nullptr && keys.Find("mscale_all_dim") != nullptr) {
      otherwise = magnitude(keys.Double("mscale")) / magnitude(keys.Double("mscale_all_dim"));
    }
    rope.attention_factor = keys.Double("attention_factor", otherwise);
  }
  return rope;
}

// Fills ropes, and the window and rope of every layer. A model has one table of rotary frequencies,
// or two, [0] for layers that see all positions and [1] for layers with a window (Gemma 3). Later
// spellings win: layer_types over the rule of the family, rope_parameters (transformers 5) over
// rope_scaling (4).
void ParseLayers(const Keys& keys, const Family& family, DecoderConfig& config) {
  const Json* parameters = keys.Find("rope_parameters");
  const Json* scaling = keys.Find("rope_scaling");
  const double theta = keys.Double("rope_theta", family.rope_theta);
  const bool two_tables = family.window == WindowRule::kFiveOfSix;
  if (two_tables) {
    const Json* full = scaling;
    const Json* sliding = nullptr;
    if (parameters != nullptr && parameters->contains("full_attention")) {
      full = &parameters->at("full_attention");
      if (parameters->contains("sliding_attention")) {
        sliding = &parameters->at("sliding_attention");
      }
    } else if (parameters != nullptr) {
      full = parameters;
    }
    config.ropes.push_back(ParseRope(full, theta, keys, family, config));
    config.ropes.push_back(
        ParseRope(sliding, keys.Double("rope_local_base_freq", 1e4), keys, family, config));
  } else {
    config.ropes.push_back(
        ParseRope(parameters != nullptr ? parameters : scaling, theta, keys, family, config));
  }

  const std::int64_t window =
      keys.IsNull("sliding_window") ? 0 : keys.Int("sliding_window", family.sliding_window);
  // The families in which sliding_window has an effect only with use_sliding_window.
  const bool by_use = family.window == WindowRule::kUpper ||
                      family.window == WindowRule::kAllIfUsed ||
                      family.window == WindowRule::kNoRope;
  const bool used = !by_use || keys.Bool("use_sliding_window", false);
  const std::int64_t max_window_layers = keys.Int("max_window_layers", 28);
  const std::int64_t pattern = keys.Int("sliding_window_pattern", 6);
  if (window < 0) ThrowInvalidInput("{}: sliding_window is {}", keys.where(), window);
  const Json* layer_types = keys.Find("layer_types");
  const Json* no_rope = keys.Find("no_rope_layers");
  const std::int64_t no_rope_interval = keys.Int("no_rope_layer_interval", 4);
  if (pattern < 1 || no_rope_interval < 1) {
    ThrowInvalidInput("{}: sliding_window_pattern and no_rope_layer_interval must be 1 or more",
                      keys.where());
  }
  const auto count = static_cast<std::size_t>(config.num_hidden_layers);
  // One entry for each layer, or the list belongs to another model.
  for (const Json* list : {layer_types, no_rope}) {
    if (list != nullptr && (!list->is_array() || list->size() != count)) {
      ThrowInvalidInput("{}: layer_types and no_rope_layers need {} entries", keys.where(), count);
    }
  }

  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    // A layer in every four of SmolLM3 has no rotary embedding.
    bool rotates = true;
    if (family.model_type == "smollm3") {
      rotates = no_rope != nullptr ? (*no_rope)[l] != 0 : (l + 1) % no_rope_interval != 0;
    }
    bool sliding = false;
    switch (family.window) {
      case WindowRule::kNone:
        break;
      case WindowRule::kAll:
      case WindowRule::kAllIfUsed:
        sliding = true;
        break;
      case WindowRule::kUpper:
        sliding = l >= max_window_layers;
        break;
      case WindowRule::kNoRope:
        sliding = !rotates;
        break;
      case WindowRule::kEven:
        sliding = l % 2 == 0;
        break;
      case WindowRule::kFiveOfSix:
        sliding = (l + 1) % pattern != 0;
        break;
    }
    if (layer_types != nullptr && family.window != WindowRule::kNone) {
      const Json& type = (*layer_types)[l];
      if (type != "full_attention" && type != "sliding_attention") {
        ThrowInvalidInput(
            "{}: layer type {} is not supported; supported: full_attention, "
            "sliding_attention",
            keys.where(), FormatJson(type));
      }
      sliding = type == "sliding_attention";
      if (sliding && !used) {
        ThrowInvalidInput(
            "{}: layer_types names sliding_attention for layer {}, and use_sliding_window is "
            "false; "
            "correct one of them",
            keys.where(), l);
      }
    }
    LayerConfig layer;
    layer.window = sliding && used ? window : 0;
    layer.rope = !rotates ? -1 : two_tables && sliding ? 1 : 0;
    config.layers.push_back(layer);
  }
}

// The two families differ in the names of their keys. Experts in some layers only are not
// supported, so each layer has the same buffers.
void ParseMoe(const Keys& keys, DecoderConfig& config) {
  const bool mixtral = config.model_type == "mixtral";
  config.moe.num_experts =
      keys.Int(mixtral ? "num_local_experts" : "num_experts", mixtral ? 8 : 128);
  config.moe.num_experts_per_tok = keys.Int("num_experts_per_tok", mixtral ? 2 : 8);
  if (!mixtral) config.intermediate_size = keys.Int("moe_intermediate_size", 768);
  config.moe.norm_topk_prob = mixtral || keys.Bool("norm_topk_prob", false);
  if (keys.Int("decoder_sparse_step", 1) != 1 ||
      (keys.Find("mlp_only_layers") != nullptr && !keys.Find("mlp_only_layers")->empty())) {
    ThrowInvalidInput("{}: decoder_sparse_step and mlp_only_layers are not supported",
                      keys.where());
  }
}

// Refuses a form of quantization that weights cannot be loaded in.
void CheckQuantization(const Keys& keys) {
  const Json* quantization = keys.Find("quantization_config");
  if (quantization == nullptr) return;
  CheckBnbConfig(*quantization, keys.where() + " (quantization_config)");
}

// ---- Checks.

// Refuses encoders and classifiers: the decoder predicts the next token from those before it, and
// from nothing else.
void CheckArchitecture(const Keys& top, const Keys& decoder) {
  if (const Json* architectures = top.Find("architectures"); architectures != nullptr) {
    const std::vector<std::string> names = top.Strings("architectures");
    const bool generates = std::any_of(names.begin(), names.end(), [](const std::string& name) {
      return name.ends_with("ForCausalLM") || name.ends_with("ForConditionalGeneration");
    });
    if (!names.empty() && !generates) {
      ThrowInvalidInput(
          "{}: architectures names {}, which is not a language model that generates; supported are "
          "the ...ForCausalLM of {}",
          top.where(), names.front(), SupportedModelTypes());
    }
  }
  if (decoder.Bool("use_bidirectional_attention", false)) {
    ThrowInvalidInput("{}: use_bidirectional_attention is not supported", decoder.where());
  }
}

// The limits are far above any model and keep products of sizes within int64, whatever a damaged or
// hostile file says.
void CheckSizes(const Keys& keys, const DecoderConfig& c) {
  const auto positive = [&](const char* key, std::int64_t value, std::int64_t limit) {
    if (value < 1 || value > limit) {
      ThrowInvalidInput("{}: {} is {}, expected 1 ... {}", keys.where(), key, value, limit);
    }
  };
  positive("vocab_size", c.vocab_size, std::int64_t{1} << 24);
  positive("hidden_size", c.hidden_size, std::int64_t{1} << 20);
  positive("intermediate_size", c.intermediate_size, std::int64_t{1} << 22);
  positive("num_hidden_layers", c.num_hidden_layers, kMaxLayers);
  positive("num_attention_heads", c.num_attention_heads, 4096);
  positive("num_key_value_heads", c.num_key_value_heads, c.num_attention_heads);
  positive("head_dim", c.head_dim, 4096);
  if (c.moe.num_experts != 0) {
    positive("the number of experts", c.moe.num_experts, kMaxExperts);
    positive("num_experts_per_tok", c.moe.num_experts_per_tok, c.moe.num_experts);
  }
  if (!(c.rms_norm_eps >= 0 && c.rms_norm_eps <= 1)) {
    ThrowInvalidInput("{}: rms_norm_eps is {}, expected 0 or more, and at most 1", keys.where(),
                      c.rms_norm_eps);
  }
  for (const float softcap : {c.attention_softcap, c.final_softcap}) {
    if (softcap >= 0 && std::isfinite(softcap)) continue;
    ThrowInvalidInput("{}: a logit softcap is {}, expected 0 or more", keys.where(), softcap);
  }
  if (!std::isfinite(c.attention_scale)) {
    ThrowInvalidInput("{}: query_pre_attn_scalar must be positive", keys.where());
  }
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    ThrowInvalidInput("{}: num_attention_heads {} is not a multiple of num_key_value_heads {}",
                      keys.where(), c.num_attention_heads, c.num_key_value_heads);
  }
}

void CheckRopes(const Keys& keys, const DecoderConfig& c) {
  for (const RopeConfig& rope : c.ropes) {
    if (!(rope.rope_theta > 0 && std::isfinite(rope.rope_theta))) {
      ThrowInvalidInput("{}: rope_theta is {}, expected a positive number", keys.where(),
                        rope.rope_theta);
    }
    if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0 || rope.rotary_dim > c.head_dim) {
      ThrowInvalidInput("{}: {} rotary dims of a head_dim of {} are not possible", keys.where(),
                        rope.rotary_dim, c.head_dim);
    }
  }
}

}  // namespace

// ---- The decoder.

DecoderConfig LoadDecoderConfig(const std::filesystem::path& model_dir) {
  const std::filesystem::path path = model_dir / "config.json";
  return ParseDecoderConfig(ReadJsonFile(path), path.string());
}

DecoderConfig ParseDecoderConfig(const Json& root, const std::string& where) {
  // The sizes come first, then what the family decides, then the layers, which need both.
  const Keys top(root, where);

  // A multimodal Gemma 3 keeps its decoder in text_config, with most keys left to their defaults.
  const bool multimodal = top.String("model_type", "") == "gemma3" && top.Find("text_config");
  const Keys keys(multimodal ? root.at("text_config") : root, where);
  DecoderConfig config;
  config.model_type = multimodal ? "gemma3_text" : keys.String("model_type", "");
  const Family& family = FamilyOf(config.model_type, where);
  config.architecture = family.architecture;
  CheckArchitecture(top, keys);

  config.vocab_size = keys.Int("vocab_size", family.vocab_size);
  config.hidden_size = keys.Int("hidden_size");
  config.intermediate_size = keys.Int("intermediate_size");
  config.num_hidden_layers = keys.Int("num_hidden_layers");
  config.num_attention_heads = keys.Int("num_attention_heads", family.num_attention_heads);
  config.num_key_value_heads = keys.IsNull("num_key_value_heads")
                                   ? config.num_attention_heads
                                   : keys.Int("num_key_value_heads", family.num_key_value_heads);
  // Without a key and without a default of the family: one key/value head for each query head.
  if (config.num_key_value_heads == 0) config.num_key_value_heads = config.num_attention_heads;
  if (config.num_attention_heads < 1) {
    ThrowInvalidInput("{}: num_attention_heads must be positive", where);
  }
  config.head_dim = keys.Int("head_dim", family.head_dim);
  if (config.head_dim == 0) {
    if (config.hidden_size % config.num_attention_heads != 0) {
      ThrowInvalidInput("{}: hidden_size {} is not a multiple of num_attention_heads {}", where,
                        config.hidden_size, config.num_attention_heads);
    }
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  config.max_position_embeddings =
      keys.Int("max_position_embeddings", family.max_position_embeddings);
  config.rms_norm_eps = static_cast<float>(keys.Double("rms_norm_eps", family.rms_norm_eps));
  config.tie_word_embeddings = keys.Bool("tie_word_embeddings", family.tie_word_embeddings);

  config.hidden_act = ActivationOf(keys, family);
  const bool attention_bias = keys.Bool("attention_bias", false);
  config.qkv_bias =
      family.bias == BiasRule::kQkvOnly || (family.bias == BiasRule::kKey && attention_bias);
  config.o_bias = family.bias == BiasRule::kKey && attention_bias;
  config.mlp_bias = family.mlp_bias_key && keys.Bool("mlp_bias", false);
  config.qk_norm = family.qk_norm;
  config.one_plus_norm = family.gemma;
  config.post_norms = family.gemma;
  config.fused_linears = family.fused_linears;
  // Attention scores are q . k / sqrt(head_dim), in Gemma / sqrt(query_pre_attn_scalar).
  double query_scalar = static_cast<double>(config.head_dim);
  if (family.gemma) {
    // Not rounded to the dtype of the checkpoint: as transformers in float32, and llama.cpp.
    config.embed_scale = std::sqrt(static_cast<float>(config.hidden_size));
    query_scalar = keys.Double("query_pre_attn_scalar", 256.0);
  }
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(query_scalar));
  // As in transformers: Gemma 3 caps logits where the key asks for a cap, and never attention.
  if (family.attention_softcap > 0) {
    config.attention_softcap = static_cast<float>(
        keys.DoubleOrNull("attn_logit_softcapping", double{family.attention_softcap}));
  }
  if (family.gemma) {
    config.final_softcap = static_cast<float>(
        keys.DoubleOrNull("final_logit_softcapping", double{family.final_softcap}));
  }
  if (family.moe) ParseMoe(keys, config);
  CheckSizes(keys, config);
  ParseLayers(keys, family, config);
  CheckRopes(keys, config);
  CheckQuantization(top);
  return config;
}

}  // namespace qlora
