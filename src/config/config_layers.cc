#include "config/config_layers.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "config/config_rope.h"

namespace qlora {
namespace {

// Of a Ministral 3 whose file says nothing.
const Json& MinistralRope() {
  static const Json rope = {{"rope_type", "yarn"},
                            {"rope_theta", 1e6},
                            {"factor", 16.0},
                            {"original_max_position_embeddings", 16384},
                            {"mscale", 1.0},
                            {"mscale_all_dim", 1.0},
                            {"llama_4_scaling_beta", 0.1}};
  return rope;
}

// Of a gpt-oss whose file says nothing.
const Json& GptOssRope() {
  static const Json rope = {{"rope_type", "yarn"}, {"rope_theta", 1.5e5},
                            {"factor", 32.0},      {"original_max_position_embeddings", 4096},
                            {"beta_fast", 32.0},   {"beta_slow", 1.0},
                            {"truncate", false}};
  return rope;
}

// A model has one table of rotary frequencies, or two, [0] for layers that see all positions and
// [1] for layers with a window (Gemma 3, Olmo 3).
void ParseRopes(const ConfigKeys& keys, const Family& family, DecoderConfig& config) {
  const Json* parameters = keys.Find("rope_parameters");
  const Json* scaling = keys.Find("rope_scaling");
  const Json* full = parameters != nullptr ? parameters : scaling;
  const Json* sliding = family.ropes_by_type ? full : nullptr;
  if (full == nullptr && family.query_scale) full = &MinistralRope();
  if (full == nullptr && family.gpt_oss) full = &GptOssRope();
  const auto has_part = [&](const char* type) {
    return parameters != nullptr && parameters->contains(type);
  };
  if (family.local_rope &&
      (has_part("full_attention") || (family.ropes_by_type && has_part("sliding_attention")))) {
    full = FindJson(*parameters, "full_attention", keys.where());
    sliding = FindJson(*parameters, "sliding_attention", keys.where());
  }
  if (full != nullptr && parameters != nullptr && scaling != nullptr) {
    CheckOneRopeSetting(*full, *scaling, family, keys.where());
  }
  const RopeDefaults usual = {keys.Double("rope_theta", family.rope_theta), "rope_theta",
                              family.partial_rotary_factor, config.head_dim};
  config.ropes.push_back(ParseRope(full, usual, keys, family, config));
  if (!family.local_rope) return;
  RopeDefaults local = usual;
  if (family.ropes_by_type) {
    local = {1e4, nullptr, 1, config.head_dim};
  } else if (family.gemma) {
    // Gemma's key; without one the layers with a window turn as the others do, but unscaled.
    local.theta_key = "rope_local_base_freq";
    local.theta = keys.Double(local.theta_key, 1e4);
  } else {
    local.theta = keys.Double("rope_theta", config.ropes[0].rope_theta);
  }
  config.ropes.push_back(ParseRope(sliding, local, keys, family, config));
}

// The keys that decide which layers rotate and which have a window.
class LayerRules {
 public:
  LayerRules(const ConfigKeys& keys, const Family& family, std::int64_t layers)
      : where_(keys.where()),
        family_(family),
        window_(keys.IsNull("sliding_window") ? 0
                                              : keys.Int("sliding_window", family.sliding_window)),
        max_window_layers_(keys.Int("max_window_layers", family.max_window_layers)),
        letters_(family.full_stays ? Letters(keys) : ""),
        pattern_(letters_.empty() ? keys.Int("sliding_window_pattern",
                                             std::max<std::int64_t>(1, family.window_period))
                                  : std::ssize(letters_)),
        no_rope_interval_(
            keys.Int("no_rope_layer_interval", std::max<std::int64_t>(1, family.no_rope_interval))),
        layer_types_(keys.Find("layer_types")),
        no_rope_(keys.Find("no_rope_layers")),
        attention_layers_(keys.Find("full_attn_idxs")),
        attention_interval_(keys.Int("full_attention_interval", 4)),
        rotates_(keys.String("position_embedding_type", "") == "rope") {
    // The families in which sliding_window has an effect only with use_sliding_window.
    const bool by_use = family.window == WindowRule::kUpper ||
                        family.window == WindowRule::kAllIfUsed ||
                        family.window == WindowRule::kNoRope;
    used_ = !by_use || keys.Bool("use_sliding_window", false);
    if (window_ < 0) ThrowInvalidInput("{}: sliding_window is {}", where_, window_);
    if (attention_interval_ < 1 || !AreLayers(attention_layers_, layers)) {
      ThrowInvalidInput(
          "{}: full_attention_interval must be 1 or more, and full_attn_idxs a list of its layers",
          where_);
    }
    if (pattern_ < 1 || no_rope_interval_ < 1) {
      ThrowInvalidInput("{}: sliding_window_pattern and no_rope_layer_interval must be 1 or more",
                        where_);
    }
    if (layer_types_ == nullptr && has_mixers() && family.window == WindowRule::kTypes) {
      ThrowInvalidInput(
          "{}: key 'layer_types' is missing, without which layers of a {} are unknown", where_,
          family.model_type);
    }
    // One entry for each layer, or the list belongs to another model.
    for (const Json* list : {layer_types_, no_rope_}) {
      if (list != nullptr &&
          (!list->is_array() || list->size() != static_cast<std::size_t>(layers))) {
        ThrowInvalidInput("{}: layer_types and no_rope_layers need {} entries", where_, layers);
      }
    }
  }

  LayerConfig Layer(std::int64_t l) const {
    const Kind kind = KindOf(l);
    if (kind.mixer != Mixer::kAttention) return {.rope = -1, .mixer = kind.mixer};
    const bool stays = family_.full_stays && window_ > 0 && !kind.sliding;
    const int table = family_.local_rope && kind.sliding ? 1 : 0;
    return {.window = kind.sliding && used_ ? window_ : 0,
            .rope = Rotates(l) && !stays ? table : -1};
  }

 private:
  struct Kind {
    Mixer mixer = Mixer::kAttention;
    bool sliding = false;
  };

  // EXAONE 4's spelling of a pattern: "LLLG", of which layers with an L have a window.
  static std::string Letters(const ConfigKeys& keys) {
    const Json* pattern = keys.Find("sliding_window_pattern");
    if (pattern == nullptr || !pattern->is_string()) return "";
    const auto letters = pattern->get<std::string>();
    if (!letters.empty() && letters.find_first_not_of("LG") == std::string::npos) return letters;
    ThrowInvalidInput("{}: sliding_window_pattern is \"{}\", expected letters L and G",
                      keys.where(), letters);
  }

  static bool AreLayers(const Json* list, std::int64_t layers) {
    if (list == nullptr) return true;
    return list->is_array() && std::ranges::all_of(*list, [layers](const Json& l) {
             return l.is_number_integer() && l >= 0 && l < layers;
           });
  }

  bool has_mixers() const { return family_.mixers != MixerRule::kAttention; }
  bool has_windows() const { return family_.window != WindowRule::kNone; }

  Kind KindOf(std::int64_t l) const {
    const bool is_conv = family_.mixers == MixerRule::kShortConv;
    const Mixer other = is_conv ? Mixer::kShortConv : Mixer::kDeltaRule;
    if (layer_types_ == nullptr || (!has_mixers() && !has_windows())) {
      const bool attends = !has_mixers() || AttendsByRule(l, is_conv);
      return attends ? Kind{.sliding = IsSlidingByFamily(l)} : Kind{.mixer = other};
    }
    const Json& type = (*layer_types_)[l];
    if (type == "full_attention" || (has_mixers() && type == "attention")) return {};
    if (has_windows() && type == "sliding_attention") {
      CheckUsed(l);
      return {.sliding = true};
    }
    const std::string name = is_conv ? "conv" : "linear_attention";
    const bool is_older_name = !is_conv && type == "mamba";
    if (has_mixers() && (type == name || is_older_name)) return {.mixer = other};
    ThrowInvalidInput("{}: layer type {} is not supported; supported: full_attention{}{}", where_,
                      FormatJson(type), has_windows() ? ", sliding_attention" : "",
                      has_mixers() ? ", " + name : "");
  }

  bool AttendsByRule(std::int64_t l, bool is_conv) const {
    if (!is_conv) return (l + 1) % attention_interval_ == 0;
    return attention_layers_ == nullptr ||
           std::ranges::find(*attention_layers_, Json(l)) != attention_layers_->end();
  }

  // Some layers of SmolLM3 have no rotary embedding, nor has any of a Granite hybrid that does not
  // ask for one.
  bool Rotates(std::int64_t l) const {
    if (family_.model_type == "granitemoehybrid") return rotates_;
    if (family_.no_rope_interval == 0) return true;
    return no_rope_ != nullptr ? (*no_rope_)[l] != 0 : (l + 1) % no_rope_interval_ != 0;
  }

  bool IsSlidingByFamily(std::int64_t l) const {
    switch (family_.window) {
      case WindowRule::kNone:
      case WindowRule::kTypes:
        return false;
      case WindowRule::kAll:
      case WindowRule::kAllIfUsed:
        return true;
      case WindowRule::kUpper:
        return l >= max_window_layers_;
      case WindowRule::kNoRope:
        return !Rotates(l);
      case WindowRule::kPeriod:
        if (!letters_.empty()) return letters_[l % pattern_] == 'L';
        return (family_.first_is_full ? l : l + 1) % pattern_ != 0;
    }
    return false;
  }

  void CheckUsed(std::int64_t l) const {
    if (used_) return;
    ThrowInvalidInput(
        "{}: layer_types names sliding_attention for layer {}, and use_sliding_window is false; "
        "correct one of them",
        where_, l);
  }

  const std::string& where_;
  const Family& family_;
  std::int64_t window_;
  std::int64_t max_window_layers_;
  std::string letters_;  // L or G of each layer of a period; or empty
  std::int64_t pattern_;
  std::int64_t no_rope_interval_;
  const Json* layer_types_;
  const Json* no_rope_;
  const Json* attention_layers_;
  std::int64_t attention_interval_;
  bool rotates_;
  bool used_ = false;  // sliding_window has an effect
};

// Adds the table of queries that grow with their position (RopeConfig::query_scale_beta), once the
// layers are there.
void AddQueryRope(DecoderConfig& config) {
  if (config.ropes[0].query_scale_beta == 0) return;
  QLORA_DCHECK(config.ropes.size() == 1);
  RopeConfig keys = config.ropes[0];
  keys.query_scale_beta = 0;
  config.ropes = {keys, config.ropes[0]};
  for (LayerConfig& layer : config.layers) layer.query_rope = 1;
}

// Gives each layer the table of its base; of 0, none. Layers of one base share a table.
void ParseLayerThetas(const ConfigKeys& keys, DecoderConfig& config) {
  constexpr const char* kKey = "layer_rope_theta";
  if (keys.Find(kKey) == nullptr) return;
  const std::vector<double> thetas = keys.Doubles(kKey, config.num_hidden_layers);
  const RopeConfig usual = config.ropes[0];
  config.ropes.clear();
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    if (!(thetas[l] >= 0 && std::isfinite(thetas[l]))) {
      ThrowInvalidInput("{}: {} has {}, expected bases, or 0 for layers that do not rotate",
                        keys.where(), kKey, thetas[l]);
    }
    config.layers[l].rope = -1;
    if (thetas[l] == 0) continue;
    const auto same = std::ranges::find(config.ropes, thetas[l], &RopeConfig::rope_theta);
    config.layers[l].rope = static_cast<int>(same - config.ropes.begin());
    if (same != config.ropes.end()) continue;
    config.ropes.push_back(usual);
    config.ropes.back().rope_theta = thetas[l];
  }
  if (config.ropes.empty()) config.ropes.push_back(usual);
}

}  // namespace

void ParseLayers(const ConfigKeys& keys, const Family& family, DecoderConfig& config) {
  ParseRopes(keys, family, config);
  const LayerRules rules(keys, family, config.num_hidden_layers);
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    config.layers.push_back(rules.Layer(l));
  }
  const bool has_local =
      std::ranges::any_of(config.layers, [](const LayerConfig& layer) { return layer.rope == 1; });
  if (!has_local) config.ropes.resize(1);
  for (LayerConfig& layer : config.layers) {
    if (layer.rope >= 0 && config.ropes[layer.rope].rotary_dim == 0) layer.rope = -1;
  }
  if (family.layer_thetas) ParseLayerThetas(keys, config);
  AddQueryRope(config);
}

}  // namespace qlora
