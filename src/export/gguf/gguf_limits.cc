#include "export/gguf/gguf_limits.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/check.h"
#include "config/gguf_config_layers.h"
#include "config/gguf_config_rope.h"
#include "config/gguf_numbers.h"

namespace qlora {
namespace {

// Below the resolution of the float32 that llama.cpp reads.
constexpr double kSame = 1e-6;

class Limits {
 public:
  explicit Limits(const DecoderConfig& config)
      : config_(config), family_(FamilyOf(config.model_type, "")) {}

  void Check(bool tied) const {
    CheckRopes();
    CheckShapes();
    CheckBlocks();
    CheckMixers();
    CheckExperts();
    if (family_.no_rope_interval > 0) CheckRotatingLayers();
    if (family_.gguf.layers_of_windows > 0) CheckLayersOfWindows();
    if (family_.gpt_oss) CheckGptOss();
    if (family_.gemma4) CheckGemma4();
    if (family_.gguf.is_tied && !tied) {
      Refuse("an output head of its own", "ties the head to the embedding");
    }
    if (family_.gguf.needs_head && tied) {
      Refuse("tie_word_embeddings", "expects an output head of its own");
    }
    if (family_.gguf.sections == PositionSections::kRead &&
        config_.ropes[0].mrope_section.empty()) {
      Refuse("rope_scaling without mrope_section", "needs its sections");
    }
    if (family_.attention_softcap > 0) {
      if (config_.attention_softcap == 0) {
        Refuse("attn_logit_softcapping null", "caps scores at 50");
      }
      if (config_.final_softcap == 0) Refuse("final_logit_softcapping null", "caps logits at 30");
    }
  }

 private:
  [[noreturn]] void Refuse(std::string_view setting, std::string_view instead) const {
    ThrowInvalidInput(
        "GGUF export of {}: {} cannot be written: llama.cpp {} in its architecture {}; export the "
        "model with --format hf instead",
        config_.model_type, setting, instead, family_.gguf.architecture);
  }

  // A layer turns by the second table.
  bool has_local() const {
    return std::ranges::any_of(config_.layers, [](const LayerConfig& l) { return l.rope == 1; });
  }

  void CheckRopes() const {
    const RopeConfig& rope = config_.ropes[0];
    const GgufFamily& gguf = family_.gguf;
    if (rope.type == RopeType::kLlama3 && gguf.divisors != GgufDivisors::kRead) {
      Refuse("rope_type llama3", "reads no factors of frequencies");
    }
    if (rope.type == RopeType::kLongrope && !gguf.is_llama && !family_.scales_by_lists) {
      Refuse("rope_type longrope", "reads no factors of frequencies");
    }
    if (rope.type == RopeType::kYarn && gguf.divisors != GgufDivisors::kRead) CheckYarn(rope);
    if (family_.ropes_by_type && rope.type != RopeType::kDefault) {
      Refuse("a factor of rope_parameters, or another scaling", "has no keys for it");
    }
    for (const RopeConfig& one : config_.ropes) {
      const bool is_partial = one.rotary_dim != config_.head_dim && !config_.value_norm;
      if (!is_partial || gguf.rotates_partly) continue;
      Refuse("partial_rotary_factor", "rotates whole heads");
    }
    const bool has_two = family_.local_rope || gguf.local_base != GgufLocalBase::kUnread;
    for (const LayerConfig& layer : config_.layers) {
      if (layer.rope > (has_two ? 1 : 0))
        Refuse("a rope_theta of single layers", "has one for all");
      const bool by_dims = family_.ropes_by_type && gguf.rotates_partly;  // a count of 0
      const bool may_stay = family_.no_rope_interval > 0 || family_.layer_thetas ||
                            gguf.may_not_rotate || gguf.layers_of_windows > 0 || by_dims;
      if (layer.rope >= 0 || may_stay || layer.mixer != Mixer::kAttention) continue;
      Refuse("layers that do not rotate", "rotates in all layers");
    }
    if (!has_local()) return;
    const RopeConfig& local = config_.ropes[1];
    if (local.type != RopeType::kDefault) {
      Refuse("a rope scaling of the layers with a window", "leaves their positions unscaled");
    }
    if (!local.divisors.empty()) {
      Refuse("a proportional rope_type of the layers with a window", "turns all of their pairs");
    }
    if (gguf.local_base == GgufLocalBase::kUnread && local.rope_theta != rope.rope_theta) {
      Refuse("a rope_theta of the layers with a window",
             "rotates them with the base of the others");
    }
  }

  void CheckYarn(const RopeConfig& rope) const {
    if (family_.query_scale) {
      GgufYarnLogMultiplier(rope);
      if (rope.truncate && rope.factor >= 1) return;
    }
    if (!HasUsualGgufYarn(rope)) {
      Refuse(fmt::format("rope_type yarn with beta_fast {}, beta_slow {}, truncate {}, factor {}",
                         rope.beta_fast, rope.beta_slow, rope.truncate, rope.factor),
             "computes YaRN with beta_fast 32, beta_slow 1 and truncate true");
    }
    const bool reaches_local = has_local() && !family_.gguf.plain_local;
    if (reaches_local && std::abs(GgufYarnFactor(rope) - 1) > kSame) {
      Refuse(fmt::format("attention_factor {} of yarn", rope.attention_factor),
             "would apply it to the layers with a window too");
    }
  }

  void CheckShapes() const {
    if (family_.gguf.derived_heads && config_.layer(0).q_features() != config_.hidden_size) {
      Refuse(fmt::format("head_dim {} with {} heads and hidden_size {}", config_.head_dim,
                         config_.num_attention_heads, config_.hidden_size),
             "expects heads of hidden_size / num_attention_heads");
    }
  }

  void CheckBlocks() const {
    if (config_.qkv_bias && !family_.gguf.qkv_bias) Refuse("attention_bias", "has no such tensors");
    if (config_.o_bias && !family_.gguf.o_bias) {
      Refuse("a bias of o_proj (attention_bias)", "has no such tensor");
    }
    if (config_.mlp_bias && !family_.gguf.mlp_bias) Refuse("mlp_bias", "has no such tensors");
    const bool is_usual =
        family_.gpt_oss || config_.hidden_act == ActivationNamed(family_.hidden_act);
    if (!is_usual) {
      Refuse(fmt::format("a hidden_act other than {}", family_.hidden_act), "has no key for it");
    }
    const auto has_window = [](const LayerConfig& layer) { return layer.window > 0; };
    const std::int64_t only = family_.gguf.layers_of_windows;
    const bool needs_windows =
        family_.gguf.needs_windows && (only == 0 || only == config_.num_hidden_layers);
    if (needs_windows && std::ranges::none_of(config_.layers, has_window)) {
      Refuse("layer_types without sliding_attention", "expects a layer with a window");
    }
    if (config_.output_gate != family_.output_gate) {
      Refuse(fmt::format("{} false", family_.output_gate_key), "expects the gate of attention");
    }
  }

  void CheckMixers() const {
    if (config_.conv_bias) Refuse("conv_bias", "has no such tensors");
    if (config_.delta_rule.key_dim != config_.delta_rule.value_dim) {
      Refuse("linear_key_head_dim other than linear_value_head_dim", "has one size for both");
    }
    if (config_.delta_rule.heads > 0) GgufAttentionInterval(config_);
    if (config_.delta_rule.heads > 0 && config_.qkv_bias) {
      Refuse("attention_bias", "has no such tensors");
    }
  }

  void CheckGemma4() const {
    if (config_.qkv_bias) Refuse("attention_bias", "has no such tensors");
    if (config_.final_softcap == 0) Refuse("final_logit_softcapping null", "caps logits at 30");
    if (config_.per_layer_size > 0 && config_.per_layer_vocab != config_.vocab_size) {
      Refuse("vocab_size_per_layer_input other than vocab_size", "has one number for both");
    }
    std::int64_t first = 0;  // of the layers that share keys and values
    while (first < config_.num_hidden_layers && config_.layers[first].has_own_kv()) ++first;
    for (std::int64_t l = first; l < config_.num_hidden_layers; ++l) {
      const LayerConfig& layer = config_.layers[l];
      if (layer.kv_layer == first - (layer.window > 0 ? 2 : 1)) continue;
      Refuse(fmt::format("layer_types in which layer {} shares the keys of layer {}", l,
                         layer.kv_layer),
             "expects a layer with a window and one without before those that share");
    }
  }

  void CheckExperts() const {
    const bool leads = config_.moe.score == RouterScore::kSigmoid;
    if (!leads && std::ranges::any_of(config_.layers, &LayerConfig::is_dense)) {
      Refuse("a layer without experts (mlp_only_layers, decoder_sparse_step)",
             "expects experts in all layers");
    }
    // What chooses experts by sigmoids.
    if (!leads) return;
    if (config_.moe.routed_scaling_factor != 1) {
      Refuse("routed_scaling_factor other than 1", "has no key for it");
    }
    if (!config_.moe.expert_bias) Refuse("use_expert_bias false", "expects the biases");
  }

  void CheckGptOss() const {
    if (!config_.qkv_bias) Refuse("attention_bias false", "expects the biases");
    if (GgufWindowPeriod(config_) != 2) {
      Refuse("layer_types without a window in every second layer", "has one there");
    }
  }

  void CheckLayersOfWindows() const {
    const bool has_windows = config_.num_hidden_layers == family_.gguf.layers_of_windows;
    for (const LayerConfig& layer : config_.layers) {
      const bool stays = layer.rope < 0;
      if (has_windows ? stays == (layer.window == 0) : !stays && layer.window == 0) continue;
      Refuse(fmt::format("a sliding_window that is {}null in a model of {} layers",
                         has_windows ? "" : "not ", config_.num_hidden_layers),
             fmt::format("knows windows, and layers that do not rotate, in models of {} layers "
                         "alone",
                         family_.gguf.layers_of_windows));
    }
  }

  void CheckRotatingLayers() const {
    for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) {
      if ((config_.layers[l].rope < 0) == ((l + 1) % family_.no_rope_interval == 0)) continue;
      Refuse("no_rope_layers other than every fourth layer", "rotates in all but those");
    }
  }

  const DecoderConfig& config_;
  const Family& family_;
};

}  // namespace

void CheckGgufLimits(const DecoderConfig& config, bool tied) { Limits(config).Check(tied); }

std::string TakeGgufYarn(DecoderConfig& config) {
  RopeConfig& rope = config.ropes[0];
  if (config.model_type != "gpt_oss" || rope.type != RopeType::kYarn || rope.truncate) return "";
  rope.truncate = true;
  return "rope_scaling says truncate false, and llama.cpp rounds the range of YaRN all the same: "
         "its "
         "positions turn a little otherwise than those of the checkpoint, as in other files of "
         "gpt-oss. The comparison of the written file with the model leaves that difference out";
}

}  // namespace qlora
