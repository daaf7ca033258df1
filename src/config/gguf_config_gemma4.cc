#include "config/gguf_config_gemma4.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "config/gguf_config_json.h"
#include "config/gguf_config_rope.h"
#include "io/json.h"

namespace qlora {
namespace {

constexpr const char* kLocal = "_swa";  // behind the keys of layers with a window

std::uint32_t U32(std::int64_t value) { return static_cast<std::uint32_t>(value); }

// A number for each layer.
template <typename Fn>
std::vector<std::uint32_t> OfLayers(const DecoderConfig& config, const Fn& value_of) {
  std::vector<std::uint32_t> values;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    values.push_back(U32(value_of(config.layer(l))));
  }
  return values;
}

// Keys and values of one size, of layers with a window ("_swa") or without.
std::int64_t HeadDim(const GgufKeys& keys, const std::string& end) {
  const std::int64_t size = keys.Int(gguf_key::kKeyLength + end);
  const std::int64_t values = keys.Int(gguf_key::kValueLength + end);
  const std::int64_t rotary = keys.Int(gguf_key::kDims + end, size);
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

void ReadGgufGemma4Sizes(const GgufKeys& keys, Json& json) {
  const std::int64_t experts = keys.Int(gguf_key::kExperts, 0);
  json["enable_moe_block"] = experts > 0;
  if (experts > 0) {
    json["num_experts"] = experts;
    json["top_k_experts"] = keys.IntOfBlocks(gguf_key::kUsedExperts);
    json["moe_intermediate_size"] = keys.Int(gguf_key::kExpertWidth);
  }
  const std::vector<std::int64_t> kv_heads = keys.OfBlocks(gguf_key::kKeyHeads);
  if (std::ranges::min(kv_heads) < 1) {
    ThrowInvalidInput("{}: attention.head_count_kv must be positive", keys.where());
  }
  json["num_attention_heads"] = keys.IntOfBlocks(gguf_key::kHeads);
  json["num_key_value_heads"] = kv_heads.front();
  json["num_global_key_value_heads"] = kv_heads.back();
  json["head_dim"] = HeadDim(keys, kLocal);
  json["global_head_dim"] = HeadDim(keys, "");
  json["intermediate_size"] = keys.OfBlocks(gguf_key::kWidth).front();
  if (NumberAt(json, "hidden_size_per_layer_input") > 0) {
    json["vocab_size_per_layer_input"] = json["vocab_size"];
  }
}

void ReadGgufGemma4Layers(const GgufKeys& keys, Json& json) {
  const std::vector<std::int64_t> pattern = keys.OfBlocks(gguf_key::kPattern);
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
  const std::int64_t width = keys.OfBlocks(gguf_key::kWidth).back();
  json["use_double_wide_mlp"] = shared > 0 && width == 2 * NumberAt(json, "intermediate_size");
}

void SetGgufGemma4Layers(const GgufKeys& keys, DecoderConfig& config) {
  const std::vector<std::int64_t> widths = keys.OfBlocks(gguf_key::kWidth);
  const std::vector<std::int64_t> kv_heads = keys.OfBlocks(gguf_key::kKeyHeads);
  const std::int64_t layers = config.num_hidden_layers;
  const std::int64_t first = layers - keys.Int(gguf_key::kSharedKvLayers, 0);
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

void WriteGgufGemma4(const DecoderConfig& config, const std::string& prefix, GgufMetadata& out) {
  const auto add = [&](const std::string& key, GgufValue value) {
    out.Add(prefix + key, std::move(value));
  };
  add(gguf_key::kWidth, OfLayers(config, [](const LayerConfig& l) { return l.intermediate_size; }));
  add(gguf_key::kHeads, U32(config.num_attention_heads));
  add(gguf_key::kKeyHeads,
      OfLayers(config, [](const LayerConfig& l) { return l.num_key_value_heads; }));
  if (config.side_moe.num_experts > 0) {
    add(gguf_key::kExpertWidth, U32(config.side_intermediate_size));
    add(gguf_key::kExperts, U32(config.side_moe.num_experts));
    add(gguf_key::kUsedExperts, U32(config.side_moe.num_experts_per_tok));
  }
  // Whole heads rotate.
  for (const std::string end : {"", kLocal}) {
    const std::int64_t size = config.ropes[end.empty() ? 0 : 1].rotary_dim;
    add(gguf_key::kKeyLength + end, U32(size));
    add(gguf_key::kValueLength + end, U32(size));
  }
}

}  // namespace qlora
