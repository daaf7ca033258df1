#include "model/gguf_config_gemma4.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "model/gguf_names.h"

namespace qlora {
namespace {

// A number for each layer, of a list or of one number for all.
std::vector<std::int64_t> OfLayers(const GgufKeys& keys, const char* key, std::int64_t blocks) {
  std::vector<std::int64_t> list = keys.List(key, blocks);
  if (list.empty()) list.assign(blocks, keys.Int(key));
  return list;
}

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

RopeConfig Rope(const GgufKeys& keys, const std::string& end) {
  RopeConfig rope;
  rope.rotary_dim = HeadDim(keys, end);
  rope.rope_theta = keys.Double("rope.freq_base" + end);
  if (!(rope.rope_theta > 0 && std::isfinite(rope.rope_theta))) {
    ThrowInvalidInput("{}: rope.freq_base{} is {}, expected a positive number", keys.where(), end,
                      rope.rope_theta);
  }
  return rope;
}

// Divisors of the frequencies of layers that see everything; empty where all turn.
std::vector<double> Divisors(const GgufReader& file, std::int64_t pairs) {
  constexpr const char* kName = "rope_freqs.weight";
  const TensorInfo* tensor = file.Find(kName);
  if (tensor == nullptr || tensor->dtype != DType::kF32 || tensor->elements() != pairs) {
    ThrowInvalidInput("{}: tensor '{}' must have {} values of F32, as in a Gemma 4", file.where(),
                      kName, pairs);
  }
  std::vector<float> values(pairs);
  std::memcpy(values.data(), file.Bytes(*tensor).data(), tensor->bytes());
  std::vector<double> divisors;
  for (const float value : values) {
    if (!(value > 0)) {
      ThrowInvalidInput("{}: tensor '{}' holds {}, expected positive numbers", file.where(), kName,
                        value);
    }
    divisors.push_back(value >= kGgufStays ? std::numeric_limits<double>::infinity() : value);
  }
  if (std::ranges::all_of(divisors, [](double divisor) { return divisor == 1; })) return {};
  return divisors;
}

}  // namespace

void ParseGemma4Sizes(const GgufKeys& keys, std::int64_t blocks, DecoderConfig& config) {
  if (const std::int64_t experts = keys.Int("expert_count", 0); experts > 0) {
    config.side_moe = {experts, keys.IntOfLayers("expert_used_count", blocks), true};
    config.side_intermediate_size = keys.Int("expert_feed_forward_length");
  }
  config.intermediate_size = OfLayers(keys, "feed_forward_length", blocks).front();
  config.num_attention_heads = keys.IntOfLayers("attention.head_count", blocks);
  config.num_key_value_heads = OfLayers(keys, "attention.head_count_kv", blocks).front();
  config.head_dim = HeadDim(keys, "_swa");
  config.per_layer_size = keys.Int("embedding_length_per_layer_input", 0);
  config.final_softcap = static_cast<float>(keys.Double("final_logit_softcapping", 30));
  if (config.per_layer_size > 0) config.per_layer_vocab = config.vocab_size;
}

void ParseGemma4GgufLayers(const GgufKeys& keys, std::int64_t blocks, DecoderConfig& config) {
  config.attention_scale = 1;
  config.layer_scalar = keys.file().Find("blk.0.layer_output_scale.weight") != nullptr;
  if (const std::string type = keys.String("rope.scaling.type", "none"); type != "none") {
    ThrowInvalidInput("{}: rope.scaling.type '{}' is not supported in a Gemma 4", keys.where(),
                      type);
  }
  const std::int64_t layers = config.num_hidden_layers;
  const std::int64_t window = keys.Int("attention.sliding_window");
  const std::int64_t shared = keys.Int("attention.shared_kv_layers", 0);
  if (window < 1 || shared < 0 || shared >= layers) {
    ThrowInvalidInput(
        "{}: attention.sliding_window {} and attention.shared_kv_layers {} of {} are not possible",
        keys.where(), window, shared, layers);
  }
  config.ropes = {Rope(keys, ""), Rope(keys, "_swa")};
  config.ropes[0].divisors = Divisors(keys.file(), config.ropes[0].rotary_dim / 2);
  const std::vector<std::int64_t> widths = OfLayers(keys, "feed_forward_length", blocks);
  const std::vector<std::int64_t> kv_heads = OfLayers(keys, "attention.head_count_kv", blocks);
  const std::vector<std::int64_t> has_window =
      OfLayers(keys, "attention.sliding_window_pattern", blocks);
  config.layers.resize(layers);
  const std::int64_t first = layers - shared;
  for (std::int64_t l = 0; l < layers; ++l) {
    LayerConfig& layer = config.layers[l];
    const bool is_local = has_window[l] != 0;
    layer.window = is_local ? window : 0;
    layer.rope = is_local ? 1 : 0;
    layer.head_dim = config.ropes[layer.rope].rotary_dim;
    layer.num_key_value_heads = kv_heads[l];
    layer.intermediate_size = widths[l];
    if (l < first) {
      const std::string values = fmt::format("blk.{}.attn_v.weight", l);
      layer.k_is_v = keys.file().Find(values) == nullptr;
    } else {
      // As llama.cpp chooses, whatever stands there.
      layer.kv_layer = first - (is_local ? 2 : 1);
      if (layer.kv_layer < 0) {
        ThrowInvalidInput("{}: attention.shared_kv_layers {} of {} layers is not possible",
                          keys.where(), shared, layers);
      }
    }
  }
}

}  // namespace qlora
