#include "export/gguf/gguf_metadata.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "config/families.h"
#include "config/gguf_names.h"
#include "config/gguf_numbers.h"
#include "export/gguf/gguf_limits.h"
#include "pass/rope.h"

namespace qlora {
namespace {

std::uint32_t U32(std::int64_t value) { return static_cast<std::uint32_t>(value); }

const Family& FamilyOf(const DecoderConfig& config) {
  return qlora::FamilyOf(config.model_type, "");
}

bool IsGemma4(const DecoderConfig& config) { return FamilyOf(config).gemma4; }

GgufWindows WindowsOf(const DecoderConfig& config) { return FamilyOf(config).gguf.windows; }

// A number for each layer.
template <typename Fn>
std::vector<std::uint32_t> OfLayers(const DecoderConfig& config, const Fn& value_of) {
  std::vector<std::uint32_t> values;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    values.push_back(U32(value_of(config.layer(l))));
  }
  return values;
}

// Sizes of layers with a window, and experts beside the MLP.
void AddGemma4(const DecoderConfig& config, const std::string& prefix, GgufMetadata& out) {
  const auto add = [&](const char* key, GgufValue value) {
    out.Add(prefix + key, std::move(value));
  };
  if (config.side_moe.num_experts > 0) {
    add("expert_feed_forward_length", U32(config.side_intermediate_size));
    add("expert_count", U32(config.side_moe.num_experts));
    add("expert_used_count", U32(config.side_moe.num_experts_per_tok));
  }
  // Whole heads rotate.
  add("attention.key_length_swa", U32(config.ropes[1].rotary_dim));
  add("attention.value_length_swa", U32(config.ropes[1].rotary_dim));
}

void AddWindows(const DecoderConfig& config, const std::string& prefix, GgufMetadata& out) {
  constexpr const char* kWindow = "attention.sliding_window";
  constexpr const char* kPattern = "attention.sliding_window_pattern";
  const Family& family = FamilyOf(config);
  std::int64_t window = 0;
  std::vector<bool> has_window;
  for (const LayerConfig& layer : config.layers) {
    // A local layer of Gemma 3 that sees everything has other frequencies all the same.
    const bool is_local = layer.rope == 1 && layer.window == 0;
    window = std::max(window, is_local ? config.max_position_embeddings : layer.window);
    has_window.push_back(layer.window > 0);
  }
  const GgufFamily& gguf = family.gguf;
  if (gguf.layers_of_windows > 0 && config.num_hidden_layers != gguf.layers_of_windows) return;
  const bool is_list = gguf.windows == GgufWindows::kList;
  const std::uint32_t period = is_list ? 0 : GgufWindowPeriod(config);
  // Without the key there are no windows, but in Gemma 2, which has 4096 in every second layer.
  if (window == 0 && !is_list && family.gguf.window == 0) return;
  out.Add(prefix + kWindow, U32(window > 0 ? window : config.max_position_embeddings));
  if (is_list) {
    out.Add(prefix + kPattern, std::move(has_window));
  } else if (period != family.window_period) {
    out.Add(prefix + kPattern, period);
  }
}

// Of scalings that have none of their own: a file that was read may have one.
void AddAttentionFactor(double factor, const std::string& prefix, GgufMetadata& out) {
  if (factor != 1) out.Add(prefix + "rope.scaling.attn_factor", static_cast<float>(factor));
}

// Of layers with a window, which may have a base of their own, and other dims that rotate.
void AddLocalRope(const DecoderConfig& config, const std::string& prefix, GgufMetadata& out) {
  const Family& family = FamilyOf(config);
  const GgufLocalBase base = family.gguf.local_base;
  if (config.ropes.size() < 2 || base == GgufLocalBase::kUnread) return;
  const RopeConfig& rope = config.ropes[0];
  const RopeConfig& local = config.ropes[1];
  const double usual = base == GgufLocalBase::kOf10000 ? 1e4 : rope.rope_theta;
  if (base == GgufLocalBase::kNeeded || local.rope_theta != usual) {
    out.Add(prefix + "rope.freq_base_swa", static_cast<float>(local.rope_theta));
  }
  if (local.rotary_dim != rope.rotary_dim || family.gemma4) {
    out.Add(prefix + "rope.dimension_count_swa", U32(local.rotary_dim));
  }
}

void AddRope(const DecoderConfig& config, const std::string& prefix, GgufMetadata& out) {
  const RopeConfig& rope = config.ropes[0];
  const auto add = [&](const char* key, GgufValue value) {
    out.Add(prefix + key, std::move(value));
  };
  const Family& family = FamilyOf(config);
  add("rope.dimension_count", U32(rope.rotary_dim));
  add("rope.freq_base", static_cast<float>(rope.rope_theta));
  AddLocalRope(config, prefix, out);
  if (!rope.mrope_section.empty() && !config.fused_delta) {
    std::vector<std::int32_t> sections(rope.mrope_section.begin(), rope.mrope_section.end());
    sections.resize(4);
    add("rope.dimension_sections", sections);
  }
  switch (rope.type) {
    case RopeType::kDefault:
    case RopeType::kLlama3:  // a tensor of divisors
      AddAttentionFactor(rope.attention_factor, prefix, out);
      break;
    case RopeType::kLinear:
      AddAttentionFactor(rope.attention_factor, prefix, out);
      add("rope.scaling.type", std::string("linear"));
      add("rope.scaling.factor", static_cast<float>(rope.factor));
      break;
    case RopeType::kYarn:
      if (WritesYarnAsFactors(rope, family)) {
        add("rope.scaling.attn_factor", static_cast<float>(rope.attention_factor));
        break;
      }
      if (family.query_scale) {
        add("rope.scaling.yarn_log_multiplier", GgufYarnLogMultiplier(rope));
        add("rope.scaling.yarn_beta_fast", static_cast<float>(rope.beta_fast));
        add("rope.scaling.yarn_beta_slow", static_cast<float>(rope.beta_slow));
      } else if (const float factor = GgufYarnFactor(rope); factor != 1) {
        add("rope.scaling.attn_factor", factor);
      }
      add("rope.scaling.type", std::string("yarn"));
      add("rope.scaling.factor", static_cast<float>(rope.factor));
      add("rope.scaling.original_context_length", U32(rope.original_max_position_embeddings));
      break;
    case RopeType::kLongrope:
      add("rope.scaling.type", std::string("longrope"));
      add("rope.scaling.original_context_length", U32(rope.original_max_position_embeddings));
      add("rope.scaling.attn_factor", static_cast<float>(rope.attention_factor));
      break;
  }
}

// Granite's multipliers. Its graph rotates unless a key denies it.
void AddMultipliers(const DecoderConfig& config, const std::string& prefix, GgufMetadata& out) {
  for (const GgufMultiplier& row : GgufMultipliers()) {
    out.Add(prefix + row.gguf, row.value(config));
  }
  if (!FamilyOf(config).gguf.may_not_rotate) return;
  out.Add(prefix + "rope.scaling.finetuned", config.layers[0].rope >= 0);
}

// The mixers that are not attention.
void AddMixers(const DecoderConfig& config, const std::string& prefix, GgufMetadata& out) {
  if (FamilyOf(config).mixers == MixerRule::kShortConv) {
    // Zeros tell the layers of short convolutions.
    std::vector<std::int32_t> heads;
    for (const LayerConfig& layer : config.layers) {
      const bool attends = layer.mixer == Mixer::kAttention;
      heads.push_back(attends ? static_cast<std::int32_t>(config.num_key_value_heads) : 0);
    }
    out.Add(prefix + "attention.head_count_kv", std::move(heads));
  }
  if (config.delta_rule.heads == 0) return;
  out.Add(prefix + "ssm.inner_size", U32(config.delta_value_features()));
}

void AddExperts(const DecoderConfig& config, const std::string& prefix, GgufMetadata& out) {
  const MoeConfig& moe = config.moe;
  out.Add(prefix + "expert_feed_forward_length", U32(config.intermediate_size));
  out.Add(prefix + "expert_count", U32(moe.num_experts));
  out.Add(prefix + "expert_used_count", U32(moe.num_experts_per_tok));
  if (moe.shared_intermediate_size > 0) {
    out.Add(prefix + "expert_shared_feed_forward_length", U32(moe.shared_intermediate_size));
  }
  if (moe.score != RouterScore::kSigmoid) return;
  out.Add(prefix + "expert_gating_func", std::uint32_t{2});
}

}  // namespace

std::string GgufArchitectureOf(const DecoderConfig& config) {
  if (config.moe.num_experts > 0 && !config.moe.norm_topk_prob) {
    ThrowInvalidInput(
        "GGUF export of {} needs norm_topk_prob true in config.json: llama.cpp always divides the "
        "weights of a token's experts by their sum",
        config.model_type);
  }
  const std::string_view architecture = GgufFamilyOf(config.model_type).architecture;
  if (architecture.empty()) {
    ThrowInvalidInput("GGUF export of model_type '{}' is not supported", config.model_type);
  }
  return std::string(architecture);
}

void AddModelMetadata(const DecoderConfig& config, const std::string& name, std::uint32_t file_type,
                      GgufMetadata& out) {
  const std::string architecture = GgufArchitectureOf(config);
  const std::string prefix = architecture + ".";
  out.Add("general.architecture", architecture);
  out.Add("general.type", std::string("model"));
  out.Add("general.name", name);
  out.Add("general.file_type", file_type);
  // GGML_QNT_VERSION, the version of the layouts of block types.
  out.Add("general.quantization_version", std::uint32_t{2});
  const auto add = [&](const char* key, GgufValue value) {
    out.Add(prefix + key, std::move(value));
  };
  add("block_count", U32(config.num_hidden_layers));
  for (const GgufNumber& row : GgufNumbers()) {
    if (row.value != nullptr && row.counts(FamilyOf(config))) add(row.gguf, U32(row.value(config)));
  }
  if (IsGemma4(config)) {
    add("feed_forward_length",
        OfLayers(config, [](const LayerConfig& l) { return l.intermediate_size; }));
  } else {
    // That of leading layers without experts, where there are some.
    add("feed_forward_length", U32(config.layer(0).intermediate_size));
  }
  if (config.moe.num_experts > 0) AddExperts(config, prefix, out);
  add("attention.head_count", U32(config.num_attention_heads));
  if (IsGemma4(config)) {
    add("attention.head_count_kv",
        OfLayers(config, [](const LayerConfig& l) { return l.num_key_value_heads; }));
  } else if (FamilyOf(config).mixers != MixerRule::kShortConv) {
    add("attention.head_count_kv", U32(config.num_key_value_heads));
  }
  // Given even where K = D / H: Qwen 3 and Gemma have another K, and the default would be wrong
  // there.
  const std::int64_t head_dim = IsGemma4(config) ? config.ropes[0].rotary_dim : config.head_dim;
  add("attention.key_length", U32(head_dim));
  add("attention.value_length", U32(head_dim));
  add("attention.layer_norm_rms_epsilon", config.rms_norm_eps);
  add("vocab_size", U32(config.vocab_size));
  if (WindowsOf(config) != GgufWindows::kIgnored) AddWindows(config, prefix, out);
  if (IsGemma4(config)) AddGemma4(config, prefix, out);
  if (config.attention_softcap > 0) add("attn_logit_softcapping", config.attention_softcap);
  if (config.final_softcap > 0) add("final_logit_softcapping", config.final_softcap);
  if (FamilyOf(config).multipliers) AddMultipliers(config, prefix, out);
  if (config.ropes.back().query_scale_beta != 0) {
    add("attention.temperature_scale", static_cast<float>(config.ropes.back().query_scale_beta));
  }
  AddMixers(config, prefix, out);
  AddRope(config, prefix, out);
}

std::vector<RopeFactors> GgufRopeFactors(const DecoderConfig& config) {
  const RopeConfig& rope = config.ropes[0];
  const auto narrow = [](const std::vector<double>& values) {
    std::vector<float> out;
    for (const double value : values) {
      out.push_back(std::isinf(value) ? kGgufStays : static_cast<float>(value));
    }
    return out;
  };
  if (rope.type == RopeType::kLongrope) {
    // Both lists: llama.cpp chooses by the length of the context that it is started with.
    return {{"rope_factors_long.weight", narrow(rope.long_factor)},
            {"rope_factors_short.weight", narrow(rope.short_factor)}};
  }
  std::vector<double> divisors = rope.divisors;
  const Family& family = FamilyOf(config);
  if (rope.type == RopeType::kLlama3 || WritesYarnAsFactors(rope, family)) {
    RopeConfig plain = rope;
    plain.type = RopeType::kDefault;
    plain.divisors.clear();
    const std::vector<double> unscaled = RopeFrequencies(plain, false);
    const std::vector<double> scaled = RopeFrequencies(rope, false);
    // Llama 3.1 and YaRN scale each frequency by another factor; llama.cpp divides frequency i by
    // rope_freqs[i].
    divisors.resize(scaled.size());
    for (std::size_t i = 0; i < scaled.size(); ++i) divisors[i] = unscaled[i] / scaled[i];
  }
  if (divisors.empty() && family.gguf.divisors == GgufDivisors::kNeeded) {
    divisors.assign(rope.rotary_dim / 2, 1);
  }
  if (divisors.empty()) return {};
  return {{kGgufDivisors, narrow(divisors)}};
}

}  // namespace qlora
