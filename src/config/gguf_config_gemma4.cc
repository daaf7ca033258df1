#include "config/gguf_config_gemma4.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"
#include "config/gguf_config_json.h"
#include "config/gguf_config_rope.h"
#include "io/json.h"

namespace qlora {
namespace {

// Keys and values of one size, of layers with a window ("_swa") or without.
std::int64_t HeadDim(const GgufKeys& keys, const std::string& end) {
  const std::int64_t size = keys.Int("attention.key_length" + end);
  const std::int64_t values = keys.Int("attention.value_length" + end);
  const std::int64_t rotary = keys.Int("rope.dimension_count" + end, size);
  if (values != size || rotary != size || size < 2 || size > 4096 || size % 2 != 0) {
    ThrowInvalidInput(
        "{}: attention.key_length{} {}, attention.value_length{} {} and rope.dimension_count{} {} "
        "are not one even size, as in a Gemma 4",
        keys.where(), end, size, end, values, end, rotary);
  }
  return size;
}

// Values are the output of k_proj.
bool IsKeyValue(const GgufReader& file, std::int64_t l) {
  return file.Find(fmt::format("blk.{}.attn_v.weight", l)) == nullptr;
}

}  // namespace

void AddGgufGemma4Sizes(const GgufKeys& keys, Json& json) {
  const std::int64_t experts = keys.Int("expert_count", 0);
  json["enable_moe_block"] = experts > 0;
  if (experts > 0) {
    json["num_experts"] = experts;
    json["top_k_experts"] = keys.IntOfBlocks("expert_used_count");
    json["moe_intermediate_size"] = keys.Int("expert_feed_forward_length");
  }
  const std::vector<std::int64_t> kv_heads = keys.OfBlocks("attention.head_count_kv");
  if (std::ranges::min(kv_heads) < 1) {
    ThrowInvalidInput("{}: attention.head_count_kv must be positive", keys.where());
  }
  json["num_attention_heads"] = keys.IntOfBlocks("attention.head_count");
  json["num_key_value_heads"] = kv_heads.front();
  json["num_global_key_value_heads"] = kv_heads.back();
  json["head_dim"] = HeadDim(keys, "_swa");
  json["global_head_dim"] = HeadDim(keys, "");
  json["intermediate_size"] = keys.OfBlocks("feed_forward_length").front();
  if (NumberAt(json, "hidden_size_per_layer_input") > 0) {
    json["vocab_size_per_layer_input"] = json["vocab_size"];
  }
}

void AddGgufGemma4Layers(const GgufKeys& keys, Json& json) {
  const std::vector<std::int64_t> pattern = keys.OfBlocks("attention.sliding_window_pattern");
  if (pattern.back() != 0) {
    ThrowInvalidInput(
        "{}: attention.sliding_window_pattern gives the last layer a window, which that of a Gemma "
        "4 has not",
        keys.where());
  }
  AddLayerTypes({pattern.begin(), pattern.end()}, "sliding_attention", json);
  const std::int64_t shared = NumberAt(json, "num_kv_shared_layers");
  json["attention_k_eq_v"] = false;
  for (std::int64_t l = 0; l < keys.blocks() - shared; ++l) {
    if (IsKeyValue(keys.file(), l)) json["attention_k_eq_v"] = true;
  }
  const std::int64_t width = keys.OfBlocks("feed_forward_length").back();
  json["use_double_wide_mlp"] = shared > 0 && width == 2 * NumberAt(json, "intermediate_size");
}

void SetGgufGemma4Layers(const GgufKeys& keys, DecoderConfig& config) {
  const std::vector<std::int64_t> widths = keys.OfBlocks("feed_forward_length");
  const std::vector<std::int64_t> kv_heads = keys.OfBlocks("attention.head_count_kv");
  const std::int64_t layers = config.num_hidden_layers;
  const std::int64_t first = layers - keys.Int("attention.shared_kv_layers", 0);
  for (std::int64_t l = 0; l < layers; ++l) {
    LayerConfig& layer = config.layers[l];
    layer.num_key_value_heads = kv_heads[l];
    layer.intermediate_size = widths[l];
    layer.k_is_v = l < first && IsKeyValue(keys.file(), l);
    if (l < first) continue;
    // As llama.cpp chooses, whatever stands there.
    layer.kv_layer = first - (layer.window > 0 ? 2 : 1);
    if (layer.kv_layer >= 0) continue;
    ThrowInvalidInput("{}: attention.shared_kv_layers {} of {} layers is not possible",
                      keys.where(), layers - first, layers);
  }
  config.layer_scalar = keys.file().Find("blk.0.layer_output_scale.weight") != nullptr;
  config.ropes[0].divisors = ReadTurns(keys.file(), config.ropes[0].rotary_dim / 2);
}

}  // namespace qlora
