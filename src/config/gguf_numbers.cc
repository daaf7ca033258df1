#include "config/gguf_numbers.h"

#include <algorithm>

#include "base/check.h"
#include "config/gguf_keys.h"

namespace qlora {
namespace {

bool IsAny(const Family& /*family*/) { return true; }
bool HasDeltaRules(const Family& family) { return family.mixers == MixerRule::kDeltaRule; }
bool HasConvolutions(const Family& family) { return family.mixers == MixerRule::kShortConv; }
bool HasDenseLayers(const Family& family) { return HasConvolutions(family) && family.moe; }
bool IsGemma4(const Family& family) { return family.gemma4; }

// llama.cpp applies a window only where its architecture has one; a context no longer than the
// window makes the difference vanish.
std::int64_t ContextLength(const DecoderConfig& config) {
  std::int64_t length = config.max_position_embeddings;
  if (GgufFamilyOf(config.model_type).windows != GgufWindows::kIgnored) return length;
  for (const LayerConfig& layer : config.layers) {
    if (layer.window > 0) length = std::min(length, layer.window);
  }
  return length;
}

constexpr GgufNumber kNumbers[] = {
    {"context_length", "max_position_embeddings", IsAny, ContextLength},
    {"embedding_length", "hidden_size", IsAny, [](const auto& c) { return c.hidden_size; }},
    {"ssm.conv_kernel", "linear_conv_kernel_dim", HasDeltaRules,
     [](const auto& c) { return c.conv_taps; }},
    {"ssm.time_step_rank", "linear_num_value_heads", HasDeltaRules,
     [](const auto& c) { return c.delta_rule.heads; }},
    {"ssm.group_count", "linear_num_key_heads", HasDeltaRules,
     [](const auto& c) { return c.delta_rule.key_heads; }},
    {"ssm.state_size", "linear_key_head_dim", HasDeltaRules,
     [](const auto& c) { return c.delta_rule.key_dim; }},
    {"ssm.state_size", "linear_value_head_dim", HasDeltaRules, nullptr},
    {"full_attention_interval", "full_attention_interval", HasDeltaRules, GgufAttentionInterval, 4},
    {"shortconv.l_cache", "conv_L_cache", HasConvolutions,
     [](const auto& c) { return c.conv_taps; }},
    {"leading_dense_block_count", "num_dense_layers", HasDenseLayers,
     [](const auto& c) -> std::int64_t {
       return std::ranges::count_if(c.layers, &LayerConfig::is_dense);
     },
     0},
    {gguf_key::kWindow, "sliding_window", IsGemma4, nullptr},
    {gguf_key::kSharedKvLayers, "num_kv_shared_layers", IsGemma4,
     [](const auto& c) -> std::int64_t {
       return std::ranges::count_if(c.layers, [](const auto& l) { return !l.has_own_kv(); });
     },
     0},
    {"embedding_length_per_layer_input", "hidden_size_per_layer_input", IsGemma4,
     [](const auto& c) { return c.per_layer_size; }, 0},
};

constexpr GgufMultiplier kMultipliers[] = {
    {gguf_key::kScale, "attention_multiplier", [](const auto& c) { return c.attention_scale; }},
    {"embedding_scale", "embedding_multiplier", [](const auto& c) { return c.embed_scale; }},
    {"residual_scale", "residual_multiplier", [](const auto& c) { return c.residual_scale; }},
    {"logit_scale", "logits_scaling", [](const auto& c) { return 1 / c.logit_scale; }},
};

}  // namespace

std::span<const GgufNumber> GgufNumbers() { return kNumbers; }

std::span<const GgufMultiplier> GgufMultipliers() { return kMultipliers; }

std::int64_t GgufAttentionInterval(const DecoderConfig& config) {
  const auto attends = [&](std::int64_t l) { return config.layers[l].mixer == Mixer::kAttention; };
  std::int64_t interval = 1;
  while (interval <= config.num_hidden_layers && !attends(interval - 1)) ++interval;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    if (attends(l) == ((l + 1) % interval == 0)) continue;
    ThrowInvalidInput(
        "GGUF export of {}: llama.cpp expects attention in every {}-th layer alone, which layer {} "
        "breaks; export the model with --format hf instead",
        config.model_type, interval, l);
  }
  return interval;
}

}  // namespace qlora
