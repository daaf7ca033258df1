#include "config/gguf_config_layers.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "config/gguf_config_json.h"
#include "io/json.h"

namespace qlora {
namespace {

constexpr const char* kSharedWidth = "expert_shared_feed_forward_length";
constexpr const char* kScore = "expert_gating_func";
constexpr std::int64_t kSigmoids = 2;  // a value of kScore

std::uint32_t U32(std::int64_t value) { return static_cast<std::uint32_t>(value); }

bool HasConvolutions(const Family& family) { return family.mixers == MixerRule::kShortConv; }

// Whether the keys of windows must be there, the pattern as a list.
bool NeedsWindowKeys(const GgufFamily& gguf) {
  return gguf.windows == GgufWindows::kList && gguf.window == 0;
}

// The blocks with a window: by a list, or all but the last of each period.
std::vector<bool> WindowPattern(const GgufKeys& keys, const Family& family) {
  const std::vector<std::int64_t> list = keys.List(gguf_key::kPattern, keys.blocks());
  if (!list.empty()) return {list.begin(), list.end()};
  if (NeedsWindowKeys(family.gguf)) {
    ThrowInvalidInput("{}: key '{}.{}': expected a list with a bool for each of {} blocks",
                      keys.where(), family.gguf.architecture, gguf_key::kPattern, keys.blocks());
  }
  const std::int64_t period = keys.Int(gguf_key::kPattern, family.window_period);
  std::vector<bool> pattern(keys.blocks());
  for (std::int64_t l = 0; l < keys.blocks(); ++l) {
    pattern[l] = period == 0 || (l + 1) % period != 0;
  }
  return pattern;
}

void WriteGgufExperts(const DecoderConfig& config, const std::string& prefix, GgufMetadata& out) {
  const MoeConfig& moe = config.moe;
  out.Add(prefix + gguf_key::kExpertWidth, U32(config.intermediate_size));
  out.Add(prefix + gguf_key::kExperts, U32(moe.num_experts));
  out.Add(prefix + gguf_key::kUsedExperts, U32(moe.num_experts_per_tok));
  if (moe.shared_intermediate_size > 0) {
    out.Add(prefix + kSharedWidth, U32(moe.shared_intermediate_size));
  }
  if (moe.score != RouterScore::kSigmoid) return;
  out.Add(prefix + kScore, U32(kSigmoids));
}

}  // namespace

std::vector<std::int64_t> GgufHeadsOrConvolutions(const GgufKeys& keys) {
  std::vector<std::int64_t> heads = keys.OfBlocks(gguf_key::kKeyHeads);
  const std::int64_t most = std::ranges::max(heads);
  for (const std::int64_t count : heads) {
    if (count == 0 || count == most) continue;
    ThrowInvalidInput("{}: attention.head_count_kv has {} and {}, expected one number and zeros",
                      keys.where(), most, count);
  }
  return heads;
}

void ReadGgufHeads(const GgufKeys& keys, const Family& family, Json& json) {
  // Experts may have a key of their own.
  const bool has_width = family.moe && keys.Has(gguf_key::kExpertWidth);
  json["intermediate_size"] =
      keys.IntOfBlocks(gguf_key::kWidth, has_width ? std::optional<std::int64_t>(0) : std::nullopt);
  const std::int64_t heads = keys.IntOfBlocks(gguf_key::kHeads);
  if (heads < 1) ThrowInvalidInput("{}: attention.head_count must be positive", keys.where());
  const std::int64_t kv_heads = HasConvolutions(family)
                                    ? std::ranges::max(GgufHeadsOrConvolutions(keys))
                                    : keys.IntOfBlocks(gguf_key::kKeyHeads, heads);
  const std::int64_t share = NumberAt(json, "hidden_size") / heads;
  const std::int64_t head_dim = keys.Int(gguf_key::kKeyLength, share);
  const std::int64_t value_length = keys.Int(gguf_key::kValueLength, share);
  if (value_length != head_dim) {
    ThrowInvalidInput(
        "{}: attention.key_length {} and attention.value_length {} differ, which is not supported",
        keys.where(), head_dim, value_length);
  }
  if (kv_heads < 1 || head_dim < 1) {
    ThrowInvalidInput(
        "{}: attention.head_count_kv is {} and attention.key_length {}, expected positive numbers",
        keys.where(), kv_heads, head_dim);
  }
  json["num_attention_heads"] = heads;
  json["num_key_value_heads"] = kv_heads;
  json["head_dim"] = head_dim;
}

void WriteGgufHeads(const DecoderConfig& config, const std::string& prefix, GgufMetadata& out) {
  // That of leading layers without experts, where there are some.
  out.Add(prefix + gguf_key::kWidth, U32(config.layer(0).intermediate_size));
  if (config.moe.num_experts > 0) WriteGgufExperts(config, prefix, out);
  out.Add(prefix + gguf_key::kHeads, U32(config.num_attention_heads));
  if (HasConvolutions(FamilyOf(config.model_type, ""))) {
    // Zeros tell the layers of short convolutions.
    std::vector<std::int32_t> heads;
    for (const LayerConfig& layer : config.layers) {
      const bool attends = layer.mixer == Mixer::kAttention;
      heads.push_back(attends ? static_cast<std::int32_t>(config.num_key_value_heads) : 0);
    }
    out.Add(prefix + gguf_key::kKeyHeads, std::move(heads));
  } else {
    out.Add(prefix + gguf_key::kKeyHeads, U32(config.num_key_value_heads));
  }
  // Given even where K = D / H: Qwen 3 and Gemma have another K, and the default would be wrong
  // there.
  out.Add(prefix + gguf_key::kKeyLength, U32(config.head_dim));
  out.Add(prefix + gguf_key::kValueLength, U32(config.head_dim));
}

void ReadGgufExperts(const GgufKeys& keys, const Family& family, Json& json) {
  const bool is_local = family.experts.local_names;
  json[is_local ? "num_local_experts" : "num_experts"] = keys.Int(gguf_key::kExperts);
  const std::int64_t used = keys.IntOfBlocks(gguf_key::kUsedExperts);
  json["num_experts_per_tok"] = used;
  if (family.gguf.is_llama) return;  // feed_forward_length is an expert's
  // llama.cpp always divides the weights of a token's experts by their sum.
  json["norm_topk_prob"] = true;
  if (used < 1) ThrowInvalidInput("{}: expert_used_count must be positive", keys.where());
  const std::int64_t width =
      keys.Int(gguf_key::kExpertWidth, NumberAt(json, "intermediate_size") / used);
  json[is_local ? "intermediate_size" : "moe_intermediate_size"] = width;
  if (family.experts.shared_intermediate_size > 0) {
    json["shared_expert_intermediate_size"] = keys.Int(kSharedWidth, width);
  }
  if (family.experts.has_dense_layers) {
    // No layer is without experts.
    json["decoder_sparse_step"] = 1;
    json["mlp_only_layers"] = Json::array();
  }
  if (family.experts.score != RouterScore::kSigmoid) return;
  if (const std::int64_t score = keys.Int(kScore); score != kSigmoids) {
    ThrowInvalidInput("{}: expert_gating_func is {}, expected {} (sigmoids)", keys.where(), score,
                      kSigmoids);
  }
  json["use_expert_bias"] = true;
  json["routed_scaling_factor"] = 1.0;
}

void ReadGgufWindows(const GgufKeys& keys, const Family& family, Json& json) {
  const GgufFamily& gguf = family.gguf;
  if (gguf.windows == GgufWindows::kIgnored) {
    if (family.window == WindowRule::kNone) return;
    json["sliding_window"] = nullptr;
    if (family.window != WindowRule::kAll) json["use_sliding_window"] = false;
    return;
  }
  if (gguf.layers_of_windows != 0 && keys.blocks() != gguf.layers_of_windows) {
    json["sliding_window"] = nullptr;
    return AddLayerTypes(std::vector<bool>(keys.blocks()), "", json);
  }
  const std::int64_t window = NeedsWindowKeys(gguf) ? keys.Int(gguf_key::kWindow)
                                                    : keys.Int(gguf_key::kWindow, gguf.window);
  std::vector<bool> has_window = WindowPattern(keys, family);
  if (window == 0) has_window.assign(keys.blocks(), false);
  AddLayerTypes(has_window, "sliding_attention", json);
  // transformers needs a window also where no layer has it.
  json["sliding_window"] = window > 0 ? Json(window) : json["max_position_embeddings"];
}

void WriteGgufWindows(const DecoderConfig& config, const std::string& prefix, GgufMetadata& out) {
  const Family& family = FamilyOf(config.model_type, "");
  if (family.gguf.windows == GgufWindows::kIgnored) return;
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
  out.Add(prefix + gguf_key::kWindow, U32(window > 0 ? window : config.max_position_embeddings));
  if (is_list) {
    out.Add(prefix + gguf_key::kPattern, std::move(has_window));
  } else if (period != family.window_period) {
    out.Add(prefix + gguf_key::kPattern, period);
  }
}

std::uint32_t GgufWindowPeriod(const DecoderConfig& config) {
  // A layer is local by its window, or in Gemma 3 by its table of frequencies.
  const auto is_local = [&](std::int64_t l) {
    return config.layers[l].window > 0 || config.layers[l].rope == 1;
  };
  const std::int64_t layers = config.num_hidden_layers;
  std::int64_t first = 0;
  while (first < layers && is_local(first)) ++first;
  const std::int64_t period = first + 1;
  for (std::int64_t l = 0; l < layers; ++l) {
    if (is_local(l) == (l % period < period - 1)) continue;
    ThrowInvalidInput(
        "GGUF export of {}: llama.cpp expects layers with a window in one period, which layer {} "
        "breaks; export the model with --format hf instead",
        config.model_type, l);
  }
  return first == layers ? 0 : static_cast<std::uint32_t>(period);
}

}  // namespace qlora
