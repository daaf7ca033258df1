#include "config/config_gemma4.h"

#include <algorithm>

#include "base/text.h"
#include "config/config_moe.h"
#include "config/config_rope.h"

namespace qlora {
namespace {

// True for layers that see everything. The class of transformers makes the last layer one.
std::vector<bool> FullLayers(const ConfigKeys& keys, const Family& family, DecoderConfig& config) {
  const std::int64_t layers = config.num_hidden_layers;
  std::vector<bool> full(layers);
  if (keys.Find("layer_types") == nullptr) {
    for (std::int64_t l = 0; l < layers; ++l) full[l] = (l + 1) % family.window_period == 0;
  } else {
    const std::vector<std::string> types = keys.Strings("layer_types");
    if (std::ssize(types) != layers) {
      ThrowInvalidInput("{}: layer_types needs {} entries", keys.where(), layers);
    }
    for (std::int64_t l = 0; l < layers; ++l) {
      full[l] = types[l] == "full_attention";
      if (full[l] || types[l] == "sliding_attention") continue;
      ThrowInvalidInput(
          "{}: layer type '{}' is not supported; supported: full_attention, sliding_attention",
          keys.where(), types[l]);
    }
  }
  if (!full.back()) {
    config.notes.push_back(
        "the last layer sees all tokens, whatever layer_types says, as in transformers");
  }
  full.back() = true;
  return full;
}

// {"05": {"head_dim": 512, "num_key_value_heads": 4}}: what single layers have in the place of the
// sizes of the model.
void ReadPerLayerConfig(const ConfigKeys& keys, const Json& overrides, DecoderConfig& config) {
  if (!overrides.is_object()) {
    ThrowInvalidInput("{}: per_layer_config must be an object", keys.where());
  }
  for (const auto& [name, values] : overrides.items()) {
    const std::int64_t l = ParseNumber<std::int64_t>(name).value_or(-1);
    if (l < 0 || l >= config.num_hidden_layers || !values.is_object()) {
      ThrowInvalidInput("{}: per_layer_config: '{}' with {} is no layer of {} with its sizes",
                        keys.where(), name, FormatJson(values), config.num_hidden_layers);
    }
    const ConfigKeys of_layer(values, fmt::format("{} (per_layer_config)", keys.where()));
    for (const auto& [key, value] : values.items()) {
      if (key == "head_dim") {
        config.layers[l].head_dim = of_layer.Int("head_dim");
      } else if (key == "num_key_value_heads") {
        config.layers[l].num_key_value_heads = of_layer.Int("num_key_value_heads");
      } else {
        ThrowInvalidInput("{}: '{}' of layer {} is not supported", of_layer.where(), key, l);
      }
    }
  }
}

// The head size that all layers of one table of frequencies have.
std::int64_t HeadDimOfTable(const ConfigKeys& keys, const DecoderConfig& config, int rope) {
  std::int64_t head_dim = 0;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const LayerConfig layer = config.layer(l);
    if (layer.rope != rope) continue;
    if (head_dim != 0 && layer.head_dim != head_dim) {
      ThrowInvalidInput("{}: heads of {} and of {} in layers of one type are not supported",
                        keys.where(), head_dim, layer.head_dim);
    }
    head_dim = layer.head_dim;
  }
  head_dim = head_dim == 0 ? config.head_dim : head_dim;
  if (head_dim < 2 || head_dim > 4096 || head_dim % 2 != 0) {
    ThrowInvalidInput("{}: heads of {} cannot rotate", keys.where(), head_dim);
  }
  return head_dim;
}

// Gives the last `shared` layers the keys and values of the last layer before them that has their
// window.
void ShareKeysAndValues(std::int64_t shared, const std::string& where, DecoderConfig& config) {
  const std::int64_t first = config.num_hidden_layers - shared;
  for (std::int64_t l = first; l < config.num_hidden_layers; ++l) {
    LayerConfig& layer = config.layers[l];
    std::int64_t owner = first - 1;
    while (owner >= 0 && config.layers[owner].window != layer.window) --owner;
    if (owner < 0) {
      ThrowInvalidInput(
          "{}: no layer before the last {}, which share keys and values, is of the type of layer "
          "{}",
          where, shared, l);
    }
    layer.kv_layer = owner;
    layer.k_is_v = false;
  }
}

// One table for layers that see everything, and one for those with a window.
void ParseRopes(const ConfigKeys& keys, const Family& family, DecoderConfig& config) {
  const Json* parameters = keys.Find("rope_parameters");
  for (const bool full : {true, false}) {
    const char* const type = full ? "full_attention" : "sliding_attention";
    const Json* of_type = nullptr;
    if (parameters != nullptr) {
      const ConfigKeys types(*parameters, keys.where() + " (rope_parameters)");
      of_type = types.Find(type);
      if (of_type == nullptr && !types.IsNull(type)) {
        ThrowInvalidInput("{}: '{}' is missing", types.where(), type);
      }
    }
    RopeDefaults usual{1e4, nullptr, 1, HeadDimOfTable(keys, config, full ? 0 : 1)};
    if (full) usual = {family.rope_theta, nullptr, family.partial_rotary_factor, usual.head_dim};
    config.ropes.push_back(ParseRope(of_type, usual, keys, family, config));
  }
}

}  // namespace

void ParseGemma4(const ConfigKeys& keys, const Family& family, DecoderConfig& config) {
  if (keys.Bool("enable_moe_block", false)) {
    const std::int64_t experts = NumberOfExperts(keys, "num_experts", 0);
    if (experts < 1) ThrowInvalidInput("{}: num_experts must be positive", keys.where());
    config.side_moe = {experts, keys.Int("top_k_experts"), true};
    config.side_intermediate_size = keys.Int("moe_intermediate_size");
  }
  // The norms of queries and keys scale scores.
  config.attention_scale = 1;
  config.final_softcap = static_cast<float>(keys.DoubleOrNull("final_logit_softcapping", 0));
  config.per_layer_size = keys.Int("hidden_size_per_layer_input", family.per_layer_size);
  if (config.per_layer_size != 0) {
    config.per_layer_vocab = keys.Int("vocab_size_per_layer_input", 262144);
  }
}

void ParseGemma4Layers(const ConfigKeys& keys, const Family& family, DecoderConfig& config) {
  const std::int64_t layers = config.num_hidden_layers;
  const std::vector<bool> full = FullLayers(keys, family, config);
  const std::int64_t window = keys.Int("sliding_window", family.sliding_window);
  const bool k_is_v = keys.Bool("attention_k_eq_v", false);
  const std::int64_t shared = keys.Int("num_kv_shared_layers", 0);
  if (window < 1 || shared < 0 || shared >= layers) {
    ThrowInvalidInput("{}: sliding_window {} and num_kv_shared_layers {} of {} are not possible",
                      keys.where(), window, shared, layers);
  }
  config.layers.resize(layers);
  for (std::int64_t l = 0; l < layers; ++l) {
    LayerConfig& layer = config.layers[l];
    if (!full[l]) layer.window = window;
    layer.rope = full[l] ? 0 : 1;
    layer.k_is_v = full[l] && k_is_v;
    const bool is_wide = l >= layers - shared && keys.Bool("use_double_wide_mlp", false);
    if (is_wide) layer.intermediate_size = 2 * config.intermediate_size;
  }
  // Files that transformers saves anew state the sizes of single layers.
  if (const Json* overrides = keys.Find("per_layer_config")) {
    ReadPerLayerConfig(keys, *overrides, config);
  } else {
    for (std::int64_t l = 0; l < layers; ++l) {
      if (!full[l]) continue;
      config.layers[l].head_dim = keys.Int("global_head_dim", 512);
      if (k_is_v) {
        config.layers[l].num_key_value_heads = keys.Int("num_global_key_value_heads", 0);
      }
    }
  }
  ParseRopes(keys, family, config);
  ShareKeysAndValues(shared, keys.where(), config);
}

}  // namespace qlora
