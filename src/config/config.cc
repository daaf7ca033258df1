#include "config/config.h"

#include <algorithm>
#include <cmath>

#include "config/config_gemma4.h"
#include "config/config_keys.h"
#include "config/config_layers.h"
#include "config/config_moe.h"
#include "config/families.h"
#include "io/bnb.h"
#include "io/fp8.h"
#include "io/mxfp4.h"

namespace qlora {
namespace {

// ---- Reading.

Activation ActivationOf(const ConfigKeys& keys, const Family& family) {
  // As in transformers, whatever hidden_act says.
  if (family.gpt_oss) return Activation::kClampedSwiglu;
  // Gemma configs carry a stale hidden_act next to the hidden_activation that counts. Those of the
  // first Gemma may have no other, and their "gelu" means the approximation.
  const bool is_gemma1 = family.model_type == "gemma";
  const bool is_old = is_gemma1 && keys.Find("hidden_activation") == nullptr;
  const char* const key = family.gemma && !is_old ? "hidden_activation" : "hidden_act";
  std::string name = keys.String(key, std::string(family.hidden_act));
  if (is_old && name == "gelu") name = "gelu_pytorch_tanh";
  if (const auto activation = ActivationNamed(name)) return *activation;
  ThrowInvalidInput("{}: {} '{}' is not supported; supported: silu, gelu, gelu_pytorch_tanh",
                    keys.where(), key, name);
}

// Refuses other values of keys of which only one is supported.
void CheckOnly(const ConfigKeys& keys, const Family& family) {
  const Json only = ParseJson(family.only, "a family");
  for (const auto& [key, supported] : only.items()) {
    const Json* value = keys.Find(key.c_str());
    if (value == nullptr || *value == supported) continue;
    ThrowInvalidInput("{}: {} {} is not supported; supported: {}", keys.where(), key,
                      FormatJson(*value), FormatJson(supported));
  }
}

// Copies the properties of a family that no key of a file states.
void ApplyFamily(const Family& family, DecoderConfig& config) {
  config.architecture = family.architecture;
  config.qk_norm = family.qk_norm;
  config.value_norm = config.layer_scalar = family.gemma4;
  config.one_plus_norm = family.one_plus_norm;
  config.input_norms = family.input_norms;
  config.post_norms = family.post_norms;
  config.fused_qkv = family.fused_qkv;
  config.fused_gate_up = family.fused_gate_up;
  config.fused_delta = family.fused_delta;
  config.names = SpelledNames(family, [](std::string_view) { return false; });
  config.sinks = family.sinks;
  config.moe.router_bias = config.moe.is_joined = family.gpt_oss;
  if (family.gpt_oss) config.mlp_bias = true;
}

// Reads the numbers of heads and their size. Needs hidden_size.
void ParseHeads(const ConfigKeys& keys, const Family& family, DecoderConfig& config) {
  config.num_attention_heads = keys.Int("num_attention_heads", family.num_attention_heads);
  config.num_key_value_heads = keys.IsNull("num_key_value_heads")
                                   ? config.num_attention_heads
                                   : keys.Int("num_key_value_heads", family.num_key_value_heads);
  // Without a key and without a default of the family: one key/value head for each query head.
  if (config.num_key_value_heads == 0) config.num_key_value_heads = config.num_attention_heads;
  if (config.num_attention_heads < 1) {
    ThrowInvalidInput("{}: num_attention_heads must be positive", keys.where());
  }
  config.head_dim = keys.Int("head_dim", family.head_dim);
  if (config.head_dim == 0) {
    if (config.hidden_size % config.num_attention_heads != 0) {
      ThrowInvalidInput("{}: hidden_size {} is not a multiple of num_attention_heads {}",
                        keys.where(), config.hidden_size, config.num_attention_heads);
    }
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
}

void ParseBiases(const ConfigKeys& keys, const Family& family, DecoderConfig& config) {
  const bool attention_bias = keys.Bool("attention_bias", family.attention_bias);
  config.mlp_bias = family.mlp_bias_key && keys.Bool("mlp_bias", false);
  switch (family.bias) {
    case BiasRule::kNone:
      break;
    case BiasRule::kKey:
      config.qkv_bias = config.o_bias = attention_bias;
      break;
    case BiasRule::kQkvKey:
      config.qkv_bias = attention_bias;
      break;
    case BiasRule::kQkvOnly:
      config.qkv_bias = true;
      break;
    case BiasRule::kTwoKeys:
      config.qkv_bias = attention_bias;
      config.o_bias = keys.Bool("attention_out_bias", false);
      break;
    case BiasRule::kAllByKey:
      config.qkv_bias = config.o_bias = config.mlp_bias = keys.Bool("use_bias", false);
      break;
  }
}

// Granite's. Without attention_multiplier scores are q . k as they are.
void ParseMultipliers(const ConfigKeys& keys, DecoderConfig& config) {
  const auto positive = [&](const char* key) {
    if (keys.IsNull(key)) {
      ThrowInvalidInput("{}: {} is null, expected a positive number", keys.where(), key);
    }
    const double value = keys.Double(key, 1);
    if (!(value > 0 && value <= 1e6)) {
      ThrowInvalidInput("{}: {} is {}, expected a positive number", keys.where(), key, value);
    }
    return static_cast<float>(value);
  };
  config.embed_scale = config.noise_scale = positive("embedding_multiplier");
  config.attention_scale = positive("attention_multiplier");
  config.residual_scale = positive("residual_multiplier");
  config.logit_scale = 1 / positive("logits_scaling");
}

// Reads the biases, norms, scales and caps of a block.
void ParseBlocks(const ConfigKeys& keys, const Family& family, DecoderConfig& config) {
  ParseBiases(keys, family, config);
  ApplyFamily(family, config);
  const std::string gate_key(family.output_gate_key);
  if (gate_key.empty() || keys.Bool(gate_key.c_str(), false)) {
    config.output_gate = family.output_gate;
  }
  // Attention scores are q . k / sqrt(head_dim), in Gemma / sqrt(query_pre_attn_scalar).
  double query_scalar = static_cast<double>(config.head_dim);
  if (family.gemma) {
    // Not rounded to the dtype of the checkpoint: as transformers in float32, and llama.cpp.
    config.embed_scale = std::sqrt(static_cast<float>(config.hidden_size));
  }
  if (family.query_scalar) query_scalar = keys.Double("query_pre_attn_scalar", 256.0);
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(query_scalar));
  if (family.multipliers) ParseMultipliers(keys, config);
  // As in transformers: Gemma 3 caps logits where the key asks for a cap, and never attention.
  if (family.attention_softcap > 0) {
    config.attention_softcap = static_cast<float>(
        keys.DoubleOrNull("attn_logit_softcapping", double{family.attention_softcap}));
  }
  if (family.query_scalar) {
    config.final_softcap = static_cast<float>(
        keys.DoubleOrNull("final_logit_softcapping", double{family.final_softcap}));
  }
}

// The sizes of mixers that are not attention.
void ParseMixers(const ConfigKeys& keys, const Family& family, DecoderConfig& config) {
  if (family.mixers == MixerRule::kDeltaRule) {
    config.delta_rule = {keys.Int("linear_num_value_heads", 32),
                         keys.Int("linear_num_key_heads", 16), keys.Int("linear_key_head_dim", 128),
                         keys.Int("linear_value_head_dim", 128)};
    config.conv_taps = keys.Int("linear_conv_kernel_dim", 4);
  }
  if (family.mixers == MixerRule::kShortConv) {
    config.conv_taps = keys.Int("conv_L_cache", family.conv_taps);
    config.conv_bias = keys.Bool("conv_bias", false);
  }
}

// LFM2 states the width of its MLP before it is cut to two thirds and rounded.
std::int64_t LfmIntermediateSize(const ConfigKeys& keys) {
  std::int64_t f = keys.Int("block_ff_dim", keys.Int("intermediate_size", 12288));
  if (!keys.Bool("block_auto_adjust_ff_dim", true)) return f;
  const std::int64_t multiple = keys.Int("block_multiple_of", 256);
  const double factor = keys.DoubleOrNull("block_ffn_dim_multiplier", 1.0);
  constexpr std::int64_t kMost = 1 << 22;
  if (f < 1 || f > kMost || multiple < 1 || multiple > kMost || !(factor >= 0 && factor <= 1024)) {
    ThrowInvalidInput(
        "{}: block_ff_dim {}, block_multiple_of {} and block_ffn_dim_multiplier {} are no width",
        keys.where(), f, multiple, factor);
  }
  f = 2 * f / 3;
  if (factor == 0) return f;
  f = static_cast<std::int64_t>(factor * static_cast<double>(f));
  return (f + multiple - 1) / multiple * multiple;
}

std::int64_t IntermediateSize(const ConfigKeys& keys, const Family& family) {
  if (family.moe) return ExpertIntermediateSize(keys, family);
  if (family.lfm2) return LfmIntermediateSize(keys);
  // Granite's hybrids have a shared expert for all tokens, which is their MLP where there are no
  // others.
  return keys.Int(family.model_type == "granitemoehybrid" ? "shared_intermediate_size"
                                                          : "intermediate_size");
}

// Where a model that sees has the key at both levels, that of the class that is loaded counts, and
// the two may differ. Whoever uses the other class would get another model.
void CheckTied(const ConfigKeys& top, const ConfigKeys& text) {
  constexpr const char* kKey = "tie_word_embeddings";
  if (top.Find(kKey) == nullptr || text.Find(kKey) == nullptr) return;
  if (top.Bool(kKey, false) == text.Bool(kKey, false)) return;
  ThrowInvalidInput("{}: tie_word_embeddings is {}, and {} in text_config; correct one of them",
                    top.where(), top.Bool(kKey, false), text.Bool(kKey, false));
}

// Refuses the hybrids of Granite that have more than attention and one MLP.
void CheckGraniteHybrid(const ConfigKeys& keys) {
  if (keys.Int("num_local_experts", 8) != 0) {
    ThrowInvalidInput("{}: experts of a granitemoehybrid (num_local_experts) are not supported",
                      keys.where());
  }
  const std::int64_t layers = keys.Int("num_hidden_layers");
  bool has_types = false;
  for (const char* key : {"layer_types", "layers_block_type"}) {
    if (keys.Find(key) == nullptr) continue;
    has_types = true;
    const std::vector<std::string> types = keys.Strings(key);
    if (std::ssize(types) != layers) {
      ThrowInvalidInput("{}: {} has {} entries, expected {}", keys.where(), key, types.size(),
                        layers);
    }
    for (const std::string& type : types) {
      if (type == "attention" || type == "full_attention") continue;
      ThrowInvalidInput(
          "{}: layers of type '{}' ({}) are not supported; supported is a granitemoehybrid whose "
          "layers all are attention",
          keys.where(), type, key);
    }
  }
  if (!has_types) {
    ThrowInvalidInput(
        "{}: without layer_types all layers are of type 'mamba', which is not "
        "supported",
        keys.where());
  }
}

// Refuses a form of quantization that weights cannot be loaded in; sets what the tensors alone do
// not tell.
void ParseQuantization(const ConfigKeys& keys, const Family& family, DecoderConfig& config) {
  const Json* quantization = keys.Find("quantization_config");
  // mlx-lm writes both keys.
  if (quantization == nullptr) quantization = keys.Find("quantization");
  if (quantization == nullptr) return;
  const std::string where = keys.where() + " (quantization_config)";
  if (IsFp8Config(*quantization, where)) {
    config.fp8_blocks = Fp8BlocksOf(*quantization, where);
    return;
  }
  if (family.gpt_oss && IsMxfp4Config(*quantization, where)) return;
  CheckBnbConfig(*quantization, where);
}

// ---- Checks.

// True for the class of a decoder that was saved without its output head, as models are that make
// embeddings: Qwen3Model of Qwen3ForCausalLM.
bool IsHeadless(std::string_view name, const Family& family) {
  const std::string_view model = family.architecture.substr(0, family.architecture.find("For"));
  if (!name.starts_with(model)) return false;
  name.remove_prefix(model.size());
  return name == "Model" || name == "TextModel";
}

// Refuses encoders and classifiers: the decoder predicts the next token from the earlier tokens
// alone.
void CheckArchitecture(const ConfigKeys& top, const ConfigKeys& decoder, const Family& family) {
  if (const Json* architectures = top.Find("architectures"); architectures != nullptr) {
    const std::vector<std::string> names = top.Strings("architectures");
    const bool generates = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return name.ends_with("ForCausalLM") || name.ends_with("ForConditionalGeneration") ||
             IsHeadless(name, family);
    });
    if (!names.empty() && !generates) {
      ThrowInvalidInput(
          "{}: architectures names {}, which is not a language model that generates; supported are "
          "the ...ForCausalLM of {}",
          top.where(), names.front(), SupportedModelTypes());
    }
  }
  // "vision": tokens of images see each other; text is causal (Gemma 4).
  const Json* both_ways = decoder.Find("use_bidirectional_attention");
  if (both_ways != nullptr && *both_ways != false && *both_ways != "vision") {
    ThrowInvalidInput("{}: use_bidirectional_attention {} is not supported", decoder.where(),
                      FormatJson(*both_ways));
  }
}

bool NamesTextClass(const ConfigKeys& top) {
  if (top.Find("architectures") == nullptr) return false;
  const std::vector<std::string> names = top.Strings("architectures");
  return !names.empty() && names.front().ends_with("ForCausalLM");
}

}  // namespace

// ---- The decoder.

LayerConfig DecoderConfig::layer(std::int64_t l) const {
  LayerConfig out = layers[l];
  if (out.num_attention_heads == 0) out.num_attention_heads = num_attention_heads;
  if (out.num_key_value_heads == 0) out.num_key_value_heads = num_key_value_heads;
  if (out.head_dim == 0) out.head_dim = head_dim;
  if (out.intermediate_size == 0) out.intermediate_size = intermediate_size;
  return out;
}

std::int64_t DecoderConfig::q_norm_size(std::int64_t l) const {
  return qk_norm == QkNorm::kProjection ? layer(l).q_features() : layer(l).head_dim;
}

std::int64_t DecoderConfig::k_norm_size(std::int64_t l) const {
  return qk_norm == QkNorm::kProjection ? layer(l).kv_features() : layer(l).head_dim;
}

bool DecoderConfig::is_kv_shared(std::int64_t l) const {
  return std::ranges::any_of(layers, [l](const LayerConfig& layer) { return layer.kv_layer == l; });
}

// The limits are far above any model and keep products of sizes within int64, whatever a damaged or
// hostile file says.
void CheckSizes(const DecoderConfig& c, const std::string& where) {
  const auto positive = [&](const char* key, std::int64_t value, std::int64_t limit) {
    if (value < 1 || value > limit) {
      ThrowInvalidInput("{}: {} is {}, expected 1 ... {}", where, key, value, limit);
    }
  };
  positive("vocab_size", c.vocab_size, std::int64_t{1} << 24);
  positive("hidden_size", c.hidden_size, std::int64_t{1} << 20);
  positive("intermediate_size", c.intermediate_size, std::int64_t{1} << 22);
  positive("num_hidden_layers", c.num_hidden_layers, kMaxLayers);
  positive("num_attention_heads", c.num_attention_heads, 4096);
  positive("num_key_value_heads", c.num_key_value_heads, c.num_attention_heads);
  positive("head_dim", c.head_dim, 4096);
  const MixerRule mixers = FamilyOf(c.model_type, where).mixers;
  if (mixers != MixerRule::kAttention) {
    positive("the taps of a convolution", c.conv_taps, kMostTaps);
  }
  if (mixers == MixerRule::kDeltaRule) {
    positive("linear_num_value_heads", c.delta_rule.heads, 4096);
    positive("linear_num_key_heads", c.delta_rule.key_heads, c.delta_rule.heads);
    positive("linear_key_head_dim", c.delta_rule.key_dim, 1024);
    positive("linear_value_head_dim", c.delta_rule.value_dim, 1024);
    if (c.delta_rule.heads % c.delta_rule.key_heads != 0) {
      ThrowInvalidInput(
          "{}: linear_num_value_heads {} is not a multiple of linear_num_key_heads {}", where,
          c.delta_rule.heads, c.delta_rule.key_heads);
    }
  }
  if (c.per_layer_size != 0) {
    positive("hidden_size_per_layer_input", c.per_layer_size, std::int64_t{1} << 12);
    // Every token has a row.
    if (c.per_layer_vocab < c.vocab_size || c.per_layer_vocab > std::int64_t{1} << 24) {
      ThrowInvalidInput("{}: vocab_size_per_layer_input is {}, and vocab_size {}", where,
                        c.per_layer_vocab, c.vocab_size);
    }
  }
  if (FamilyOf(c.model_type, where).moe) {
    positive("the number of experts", c.moe.num_experts, kMaxExperts);
  }
  if (c.side_moe.num_experts != 0) {
    positive("moe_intermediate_size", c.side_intermediate_size, std::int64_t{1} << 22);
  }
  if (const MoeConfig& moe = c.experts(); moe.num_experts != 0) {
    positive("the number of experts", moe.num_experts, kMaxExperts);
    const char* const chosen = c.side_moe.num_experts > 0 ? "top_k_experts" : "num_experts_per_tok";
    positive(chosen, moe.num_experts_per_tok, moe.num_experts);
    if (moe.shared_intermediate_size != 0) {
      positive("shared_expert_intermediate_size", moe.shared_intermediate_size,
               std::int64_t{1} << 22);
    }
    if (!(moe.routed_scaling_factor > 0 && moe.routed_scaling_factor <= 1e6F)) {
      ThrowInvalidInput("{}: routed_scaling_factor is {}, expected a positive number", where,
                        moe.routed_scaling_factor);
    }
  }
  if (!(c.rms_norm_eps >= 0 && c.rms_norm_eps <= 1)) {
    ThrowInvalidInput("{}: rms_norm_eps is {}, expected 0 or more, and at most 1", where,
                      c.rms_norm_eps);
  }
  for (const float softcap : {c.attention_softcap, c.final_softcap}) {
    if (softcap >= 0 && std::isfinite(softcap)) continue;
    ThrowInvalidInput("{}: a logit softcap is {}, expected 0 or more", where, softcap);
  }
  if (!std::isfinite(c.attention_scale)) {
    ThrowInvalidInput("{}: query_pre_attn_scalar must be positive", where);
  }
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    ThrowInvalidInput("{}: num_attention_heads {} is not a multiple of num_key_value_heads {}",
                      where, c.num_attention_heads, c.num_key_value_heads);
  }
}

void CheckLayerSizes(const DecoderConfig& c, const std::string& where) {
  for (std::int64_t l = 0; l < c.num_hidden_layers; ++l) {
    const LayerConfig layer = c.layer(l);
    if (layer.head_dim < 1 || layer.head_dim > 4096 || layer.intermediate_size < 1 ||
        layer.intermediate_size > std::int64_t{1} << 22 || layer.num_key_value_heads < 1 ||
        layer.num_attention_heads % layer.num_key_value_heads != 0) {
      ThrowInvalidInput(
          "{}: layer {} cannot have {} heads of queries, {} of keys, heads of {} and an MLP of {}",
          where, l, layer.num_attention_heads, layer.num_key_value_heads, layer.head_dim,
          layer.intermediate_size);
    }
    if (layer.has_own_kv()) continue;
    const LayerConfig owner = c.layer(layer.kv_layer);
    if (owner.num_key_value_heads != layer.num_key_value_heads ||
        owner.head_dim != layer.head_dim || owner.window != layer.window) {
      ThrowInvalidInput("{}: layer {} would attend to the keys of layer {}, which is another kind",
                        where, l, layer.kv_layer);
    }
  }
}

DecoderConfig ParseDecoderConfig(const Json& root, const std::string& where) {
  // The sizes come first, then the values that the family decides, then the layers, which need
  // both.
  const ConfigKeys top(root, where);

  const Wrapper* wrapper = FindWrapper(top.String("model_type", ""));
  const bool has_text = wrapper != nullptr && top.Find("text_config") != nullptr;
  const ConfigKeys keys(has_text ? root.at("text_config") : root, where);
  DecoderConfig config;
  const bool names_itself = wrapper == nullptr || (has_text && wrapper->names_text);
  const std::string otherwise(wrapper == nullptr ? "" : wrapper->text);
  config.model_type = names_itself ? keys.String("model_type", otherwise) : otherwise;
  if (config.model_type.empty() && top.Find("error") != nullptr) {
    ThrowInvalidInput("{}: is the answer of a server ({}), not the file itself: download it again",
                      where, FormatJson(*top.Find("error")));
  }
  // Since transformers 4.52 a wrapper holds its decoder as language_model.
  // A model whose architectures names its text class is loaded as that.
  if (wrapper != nullptr && !NamesTextClass(top)) config.module_prefix = "model.language_model.";
  const Family& family = FamilyOf(config.model_type, where);
  CheckArchitecture(top, keys, family);
  CheckOnly(keys, family);

  config.vocab_size = keys.Int("vocab_size", family.vocab_size);
  config.hidden_size = keys.Int("hidden_size");
  config.intermediate_size = IntermediateSize(keys, family);
  config.num_hidden_layers = keys.Int("num_hidden_layers");
  ParseHeads(keys, family, config);
  config.max_position_embeddings =
      keys.Int("max_position_embeddings", family.max_position_embeddings);
  // LFM3 has both names of the key.
  const double epsilon =
      family.lfm2 ? family.rms_norm_eps : keys.Double("rms_norm_eps", family.rms_norm_eps);
  const bool is_lfm = family.mixers == MixerRule::kShortConv;
  config.rms_norm_eps = static_cast<float>(is_lfm ? keys.Double("norm_eps", epsilon) : epsilon);
  // A multimodal model may have the key at either level.
  const bool tied_by_default =
      wrapper != nullptr ? wrapper->tie_word_embeddings : family.tie_word_embeddings;
  config.tie_word_embeddings =
      keys.Bool("tie_word_embeddings", top.Bool("tie_word_embeddings", tied_by_default));
  if (family.lfm2) {
    config.tie_word_embeddings = keys.Bool("tie_embedding", config.tie_word_embeddings);
  }
  if (family.mixers == MixerRule::kDeltaRule) CheckTied(top, keys);

  config.hidden_act = ActivationOf(keys, family);
  ParseBlocks(keys, family, config);
  if (family.moe) ParseMoe(keys, family, config);
  ParseMixers(keys, family, config);
  if (config.model_type == "granitemoehybrid") CheckGraniteHybrid(keys);
  if (family.gemma4) ParseGemma4(keys, family, config);
  CheckSizes(config, where);
  if (family.gemma4) {
    ParseGemma4Layers(keys, family, config);
  } else {
    ParseLayers(keys, family, config);
  }
  if (family.moe) ParseDenseLayers(keys, family, config);
  CheckLayerSizes(config, where);
  ParseQuantization(keys, family, config);
  ParseQuantization(top, family, config);
  return config;
}

}  // namespace qlora
