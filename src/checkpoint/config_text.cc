#include "checkpoint/config_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tokenizer/lookup_tables.h"

namespace qlora {
namespace {

// Collects "name=value;".
class Fields {
 public:
  template <typename T>
  Fields& Add(std::string_view name, const T& value) {
    if constexpr (std::is_enum_v<T>) {
      text_ += fmt::format("{}={};", name, static_cast<std::int64_t>(value));
    } else {
      text_ += fmt::format("{}={};", name, value);
    }
    return *this;
  }
  // Several values, which would be long.
  Fields& AddHash(std::string_view name, std::string_view text) {
    return Add(name, fmt::format("{:016x}", HashBytes(text)));
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Each function names all fields, so that the compiler refuses one that lacks a new field.

std::string TextOf(const RopeConfig& rope) {
  const auto& [type, theta, dim, factor, low, high, fast, slow, attention, truncate, original,
               short_factor, long_factor, sections, interleaved, query_scale, divisors] = rope;
  return fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}", static_cast<int>(type),
                     theta, dim, factor, low, high, fast, slow, attention, truncate, original,
                     short_factor, long_factor, sections, interleaved, query_scale, divisors);
}

std::string TextOf(const LayerConfig& layer) {
  const auto& [window, rope, query_rope, heads, kv_heads, head_dim, intermediate, mixer, k_is_v,
               kv_layer, is_dense] = layer;
  return fmt::format("{},{},{},{},{},{},{},{},{},{},{}", window, rope, query_rope, heads, kv_heads,
                     head_dim, intermediate, static_cast<int>(mixer), k_is_v, kv_layer, is_dense);
}

std::string TextOf(const MoeConfig& moe) {
  const auto& [experts, per_token, normalizes, shared, score, has_bias, scale, router_bias,
               is_joined] = moe;
  return fmt::format("{},{},{},{},{},{},{},{},{}", experts, per_token, normalizes, shared,
                     static_cast<int>(score), has_bias, scale, router_bias, is_joined);
}

std::string TextOf(const DeltaRuleShape& shape) {
  const auto& [heads, key_heads, key_dim, value_dim, tiled] = shape;
  return fmt::format("{},{},{},{},{}", heads, key_heads, key_dim, value_dim, tiled);
}

template <typename T>
std::string TextOf(const std::vector<T>& list) {
  std::string text;
  for (const T& item : list) text += TextOf(item) + ";";
  return text;
}

std::map<std::string_view, std::string_view> ValuesIn(std::string_view text) {
  std::map<std::string_view, std::string_view> values;
  while (!text.empty()) {
    const std::string_view field = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(field.size() + 1, text.size()));
    const std::size_t equal = field.find('=');
    if (equal != field.npos) values.emplace(field.substr(0, equal), field.substr(equal + 1));
  }
  return values;
}

}  // namespace

// Of the bound names, those of modules and classes, max_position_embeddings (which samples may have
// is recorded with them), notes and stage are left out.
std::string ConfigText(const DecoderConfig& config) {
  const auto& [model_type, architecture, vocab_size, hidden_size, intermediate_size,
               num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim,
               max_position_embeddings, rms_norm_eps, tie_word_embeddings, has_own_head, hidden_act,
               qkv_bias, o_bias, mlp_bias, conv_bias, qk_norm, output_gate, sinks, value_norm,
               one_plus_norm, input_norms, post_norms, fused_qkv, fused_gate_up, fused_delta,
               embed_scale, noise_scale, residual_scale, logit_scale, attention_scale,
               attention_softcap, final_softcap, layer_scalar, per_layer_size, per_layer_vocab,
               names, module_prefix, delta_rule, conv_taps, ropes, layers, moe, side_moe,
               side_intermediate_size, fp8_blocks, notes, stage] = config;
  Fields fields;
  fields.Add("vocab_size", vocab_size)
      .Add("hidden_size", hidden_size)
      .Add("intermediate_size", intermediate_size)
      .Add("num_hidden_layers", num_hidden_layers)
      .Add("num_attention_heads", num_attention_heads)
      .Add("num_key_value_heads", num_key_value_heads)
      .Add("head_dim", head_dim)
      .Add("rms_norm_eps", rms_norm_eps)
      .Add("tie_word_embeddings", tie_word_embeddings)
      .Add("has_own_head", has_own_head)
      .Add("hidden_act", hidden_act)
      .Add("qkv_bias", qkv_bias)
      .Add("o_bias", o_bias)
      .Add("mlp_bias", mlp_bias)
      .Add("conv_bias", conv_bias)
      .Add("qk_norm", qk_norm)
      .Add("output_gate", output_gate)
      .Add("sinks", sinks)
      .Add("value_norm", value_norm)
      .Add("one_plus_norm", one_plus_norm)
      .Add("input_norms", input_norms)
      .Add("post_norms", post_norms)
      .Add("fused_qkv", fused_qkv)
      .Add("fused_gate_up", fused_gate_up)
      .Add("fused_delta", fused_delta)
      .Add("embed_scale", embed_scale)
      .Add("noise_scale", noise_scale)
      .Add("residual_scale", residual_scale)
      .Add("logit_scale", logit_scale)
      .Add("attention_scale", attention_scale)
      .Add("attention_softcap", attention_softcap)
      .Add("final_softcap", final_softcap)
      .Add("layer_scalar", layer_scalar)
      .Add("per_layer_size", per_layer_size)
      .Add("per_layer_vocab", per_layer_vocab)
      .Add("conv_taps", conv_taps)
      .Add("side_intermediate_size", side_intermediate_size)
      .AddHash("delta_rule", TextOf(delta_rule))
      .AddHash("rope", TextOf(ropes))
      .AddHash("layers", TextOf(layers))
      .AddHash("experts", TextOf(moe) + ";" + TextOf(side_moe));
  // Texts of most models are those of earlier versions.
  if (fp8_blocks != Fp8Blocks()) {
    fields.Add("fp8_blocks", fmt::format("{}x{}", fp8_blocks.rows, fp8_blocks.cols));
  }
  return fields.text();
}

std::string DescribeConfigDifference(const std::string& then, const std::string& now) {
  const auto before = ValuesIn(then);
  std::vector<std::string> differences;
  for (const auto& [name, value] : ValuesIn(now)) {
    const auto old = before.find(name);
    if (old != before.end() && old->second == value) continue;
    const bool is_hash = value.size() == 16;
    differences.push_back(is_hash || old == before.end()
                              ? std::string(name)
                              : fmt::format("{} {}, now {}", name, old->second, value));
  }
  return fmt::format("{}", fmt::join(differences, ", "));
}

}  // namespace qlora
