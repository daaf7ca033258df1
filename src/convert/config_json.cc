// The keys that the families share come first, then those of a family's rules; at the end the
// result is read again, so that nothing is lost without a word.
#include "convert/config_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "io/json.h"
#include "model/families.h"
#include "pass/rope.h"

namespace qlora {
namespace {

// For text, models that see compute what models of text alone compute.
std::string TextModelType(const std::string& model_type) {
  if (model_type == "qwen2_5_vl_text") return "qwen2";
  if (model_type == "qwen3_vl_text") return "qwen3";
  return model_type;
}

// The shortest decimal number that is this float: 1e-5, not 9.999999747378752e-06.
double Shortest(float value) {
  const std::string text = fmt::format("{}", value);
  double number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// The x of which 1 / x is this float.
double InverseOf(float value) {
  const float x = 1 / value;
  for (const float near : {x, std::nextafter(x, 0.0F), std::nextafter(x, 2 * x)}) {
    if (1 / near == value) return Shortest(near);
  }
  return x;
}

// ---- Rotary embedding.

bool AreNear(double a, double b) {
  // Divisors are float32 in files.
  return std::abs(a - b) <= 1e-6 * std::abs(b);
}

bool AreNear(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](double x, double y) { return AreNear(x, y); });
}

bool TurnAlike(const RopeConfig& a, const RopeConfig& b) {
  const bool switches = a.type == RopeType::kLongrope && a.short_factor != a.long_factor;
  const bool counts = switches || a.query_scale_beta != 0;
  return AreNear(RopeFrequencies(a, false), RopeFrequencies(b, false)) &&
         AreNear(RopeFrequencies(a, true), RopeFrequencies(b, true)) &&
         AreNear(a.attention_factor, b.attention_factor) && a.rotary_dim == b.rotary_dim &&
         a.interleaved == b.interleaved && a.query_scale_beta == b.query_scale_beta &&
         (!counts || a.original_max_position_embeddings == b.original_max_position_embeddings);
}

// The scaling of Llama 3.1 to 3.3, of which a file holds the divisors.
std::optional<RopeConfig> AsLlama3(const RopeConfig& rope) {
  RopeConfig llama3 = rope;
  llama3.type = RopeType::kLlama3;
  llama3.factor = *std::ranges::max_element(rope.divisors);
  llama3.low_freq_factor = 1;
  llama3.high_freq_factor = 4;
  llama3.original_max_position_embeddings = 8192;
  llama3.divisors.clear();
  return TurnAlike(rope, llama3) ? std::optional(llama3) : std::nullopt;
}

// The same table in the words of config.json, which has no divisors beside a scaling.
RopeConfig InWordsOfConfig(const RopeConfig& rope, const DecoderConfig& config) {
  // transformers 4 knows one kind of scaling for a Phi-3: lists.
  const bool is_phi3 = config.model_type == "phi3";
  const bool is_linear = rope.type == RopeType::kLinear;
  if (rope.type != RopeType::kDefault && !is_linear) return rope;
  const bool has_words = rope.divisors.empty() && rope.attention_factor == 1;
  if (has_words && !(is_phi3 && is_linear)) return rope;
  if (!rope.divisors.empty() && !is_phi3) {
    if (const auto llama3 = AsLlama3(rope)) return *llama3;
  }
  RopeConfig listed = rope;
  listed.type = RopeType::kLongrope;
  listed.divisors.clear();
  const double factor = is_linear ? rope.factor : 1;
  listed.short_factor.assign(rope.rotary_dim / 2, factor);
  for (std::size_t i = 0; i < rope.divisors.size(); ++i) {
    listed.short_factor[i] *= rope.divisors[i];
  }
  listed.long_factor = listed.short_factor;
  // Without an effect: both lists are one.
  listed.original_max_position_embeddings = config.max_position_embeddings;
  return listed;
}

// Returns rope_scaling, or null.
Json ScalingOf(const RopeConfig& rope, const DecoderConfig& config) {
  const bool is_phi3 = config.model_type == "phi3";
  switch (rope.type) {
    case RopeType::kDefault:
      return nullptr;
    case RopeType::kLinear:
      return {{"rope_type", "linear"}, {"factor", rope.factor}};
    case RopeType::kLlama3:
      return {{"rope_type", "llama3"},
              {"factor", rope.factor},
              {"low_freq_factor", rope.low_freq_factor},
              {"high_freq_factor", rope.high_freq_factor},
              {"original_max_position_embeddings", rope.original_max_position_embeddings}};
    case RopeType::kYarn:
      return {{"rope_type", "yarn"},
              {"factor", rope.factor},
              {"beta_fast", rope.beta_fast},
              {"beta_slow", rope.beta_slow},
              {"attention_factor", rope.attention_factor},
              {"original_max_position_embeddings", rope.original_max_position_embeddings}};
    case RopeType::kLongrope:
      break;
  }
  // transformers 4 takes three keys for a Phi-3, and computes the factor, as `otherwise` is; a
  // fourth is for transformers 5.
  Json scaling = {{is_phi3 ? "type" : "rope_type", "longrope"},
                  {"short_factor", rope.short_factor},
                  {"long_factor", rope.long_factor}};
  const auto original = static_cast<double>(rope.original_max_position_embeddings);
  const double extension = static_cast<double>(config.max_position_embeddings) / original;
  const double otherwise =
      extension <= 1 ? 1 : std::sqrt(1 + std::log(extension) / std::log(original));
  if (!is_phi3) {
    scaling["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  }
  if (!is_phi3 || !AreNear(rope.attention_factor, otherwise)) {
    scaling["attention_factor"] = rope.attention_factor;
  }
  return scaling;
}

void AddRopes(const DecoderConfig& config, const Family& family, Json& json) {
  // A table of queries that grow is the table of keys and one number more.
  const RopeConfig& stored = config.ropes[config.layers[0].query_rope < 0 ? 0 : 1];
  const RopeConfig rope = InWordsOfConfig(stored, config);
  Json scaling = ScalingOf(rope, config);
  if (family.model_type == "ministral3") {
    // Its class is of the generation that has this spelling alone.
    if (scaling.is_null()) scaling = {{"rope_type", "default"}};
    scaling["rope_theta"] = rope.rope_theta;
    scaling["llama_4_scaling_beta"] = rope.query_scale_beta;
    scaling["original_max_position_embeddings"] = rope.original_max_position_embeddings;
    json["rope_parameters"] = std::move(scaling);
    return;
  }
  json["rope_theta"] = rope.rope_theta;
  json["rope_scaling"] = std::move(scaling);
  if (rope.type == RopeType::kLongrope) {
    json["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  }
  if (family.local_rope && family.gemma) {
    json["rope_local_base_freq"] = config.ropes.back().rope_theta;
  }
  if (rope.rotary_dim == config.head_dim && family.partial_rotary_factor == 1) return;
  double partial = static_cast<double>(rope.rotary_dim) / static_cast<double>(config.head_dim);
  // Readers round down.
  while (static_cast<std::int64_t>(static_cast<double>(config.head_dim) * partial) <
         rope.rotary_dim) {
    partial = std::nextafter(partial, 2.0);
  }
  json["partial_rotary_factor"] = partial;
}

// ---- What differs between families.

void AddBiases(const DecoderConfig& config, const Family& family, Json& json) {
  switch (family.bias) {
    case BiasRule::kNone:
    case BiasRule::kQkvOnly:
      break;
    case BiasRule::kTwoKeys:
      json["attention_out_bias"] = config.o_bias;
      [[fallthrough]];
    case BiasRule::kKey:
    case BiasRule::kQkvKey:
      json["attention_bias"] = config.qkv_bias;
      break;
    case BiasRule::kAllByKey:
      json["use_bias"] = config.qkv_bias;
      break;
  }
  if (family.mlp_bias_key) json["mlp_bias"] = config.mlp_bias;
}

void AddLayers(const DecoderConfig& config, const Family& family, Json& json) {
  switch (family.window) {
    case WindowRule::kNone:
      break;
    case WindowRule::kAll:
      json["sliding_window"] = nullptr;
      break;
    case WindowRule::kUpper:
    case WindowRule::kAllIfUsed:
    case WindowRule::kNoRope:
      json["use_sliding_window"] = false;
      json["sliding_window"] = nullptr;
      break;
    case WindowRule::kPeriod: {
      // transformers needs a window also where no layer has it.
      json["sliding_window"] = config.max_position_embeddings;
      for (const LayerConfig& layer : config.layers) {
        json["layer_types"].push_back(layer.window > 0 ? "sliding_attention" : "full_attention");
        if (layer.window > 0) json["sliding_window"] = layer.window;
      }
      break;
    }
  }
  if (family.model_type != "smollm3") return;
  for (const LayerConfig& layer : config.layers) {
    json["no_rope_layers"].push_back(layer.rope < 0 ? 0 : 1);
  }
}

// LFM2's: layers of short convolutions, and a width that is meant as it is.
void AddConvolutions(const DecoderConfig& config, Json& json) {
  json["norm_eps"] = json["rms_norm_eps"];
  json["conv_L_cache"] = config.conv_taps;
  json["conv_bias"] = config.conv_bias;
  json["block_auto_adjust_ff_dim"] = false;
  for (const LayerConfig& layer : config.layers) {
    json["layer_types"].push_back(layer.mixer == Mixer::kAttention ? "full_attention" : "conv");
  }
}

void AddExperts(const DecoderConfig& config, Json& json) {
  json["num_experts_per_tok"] = config.moe.num_experts_per_tok;
  if (config.model_type == "mixtral") {
    json["num_local_experts"] = config.moe.num_experts;
    return;
  }
  json["num_experts"] = config.moe.num_experts;
  json["moe_intermediate_size"] = config.intermediate_size;
  json["norm_topk_prob"] = config.moe.norm_topk_prob;
  if (config.moe.score == RouterScore::kSigmoid) {
    json["intermediate_size"] = config.layer(0).intermediate_size;
    json["num_dense_layers"] = std::ranges::count_if(config.layers, &LayerConfig::is_dense);
    json["use_expert_bias"] = config.moe.expert_bias;
    json["routed_scaling_factor"] = Shortest(config.moe.routed_scaling_factor);
    return;
  }
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = Json::array();
}

// Gemma 4's layers, with their heads and rotary tables.
void AddGemma4(const DecoderConfig& config, Json& json) {
  std::int64_t shared = 0;
  json["use_double_wide_mlp"] = json["attention_k_eq_v"] = false;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const LayerConfig layer = config.layer(l);
    const bool is_full = layer.window == 0;
    json["layer_types"].push_back(is_full ? "full_attention" : "sliding_attention");
    if (is_full) json["global_head_dim"] = layer.head_dim;
    if (is_full) json["num_global_key_value_heads"] = layer.num_key_value_heads;
    if (!is_full) json["sliding_window"] = layer.window;
    if (layer.k_is_v) json["attention_k_eq_v"] = true;
    if (layer.intermediate_size == 2 * config.intermediate_size) json["use_double_wide_mlp"] = true;
    shared += layer.has_own_kv() ? 0 : 1;
  }
  json["num_kv_shared_layers"] = shared;
  json["enable_moe_block"] = config.side_moe.num_experts > 0;
  if (config.side_moe.num_experts > 0) {
    json["num_experts"] = config.side_moe.num_experts;
    json["top_k_experts"] = config.side_moe.num_experts_per_tok;
    json["moe_intermediate_size"] = config.side_intermediate_size;
  }
  json["hidden_size_per_layer_input"] = config.per_layer_size;
  if (config.per_layer_size > 0) json["vocab_size_per_layer_input"] = config.per_layer_vocab;
  json["final_logit_softcapping"] =
      config.final_softcap > 0 ? Json(Shortest(config.final_softcap)) : Json(nullptr);
  const RopeConfig& full = config.ropes[0];
  const auto turning = std::ranges::count(full.divisors, 1.0);
  const double part = full.divisors.empty()
                          ? 1
                          : 2 * static_cast<double>(turning) / static_cast<double>(full.rotary_dim);
  json["rope_parameters"] = {
      {"full_attention",
       {{"rope_type", "proportional"},
        {"partial_rotary_factor", part},
        {"rope_theta", full.rope_theta}}},
      {"sliding_attention",
       {{"rope_type", "default"}, {"rope_theta", config.ropes[1].rope_theta}}}};
}

void AddScales(const DecoderConfig& config, const Family& family, Json& json) {
  const auto cap = [](float value) { return value > 0 ? Json(Shortest(value)) : Json(nullptr); };
  if (family.gemma) json["hidden_activation"] = json["hidden_act"];
  if (family.query_scalar) {
    const double scale = config.attention_scale;
    json["query_pre_attn_scalar"] = std::llround(1 / (scale * scale));
    json["attn_logit_softcapping"] = cap(config.attention_softcap);
    json["final_logit_softcapping"] = cap(config.final_softcap);
  }
  if (family.multipliers) {
    json["embedding_multiplier"] = Shortest(config.embed_scale);
    json["attention_multiplier"] = Shortest(config.attention_scale);
    json["residual_multiplier"] = Shortest(config.residual_scale);
    json["logits_scaling"] = InverseOf(config.logit_scale);
  }
}

// ---- The result.

// Compares a decoder with what its config.json states.
class Comparison {
 public:
  Comparison(const DecoderConfig& wanted, const std::string& where)
      : wanted_(wanted), where_(where) {}

  template <typename T>
  void Same(const T& wanted, const T& stated, const std::string& what) const {
    if (wanted == stated) return;
    if constexpr (std::is_arithmetic_v<T>) {
      Refuse(fmt::format("{} {}", what, wanted));
    } else {
      Refuse(what);
    }
  }

  void Run(const DecoderConfig& stated) const {
    const DecoderConfig& w = wanted_;
    const DecoderConfig& s = stated;
    Same(w.vocab_size, s.vocab_size, "vocab_size");
    Same(w.hidden_size, s.hidden_size, "hidden_size");
    Same(w.intermediate_size, s.intermediate_size, "intermediate_size");
    Same(w.num_hidden_layers, s.num_hidden_layers, "num_hidden_layers");
    Same(w.num_attention_heads, s.num_attention_heads, "num_attention_heads");
    Same(w.num_key_value_heads, s.num_key_value_heads, "num_key_value_heads");
    Same(w.head_dim, s.head_dim, "head_dim");
    Same(w.max_position_embeddings, s.max_position_embeddings, "max_position_embeddings");
    Same(w.rms_norm_eps, s.rms_norm_eps, "rms_norm_eps");
    Same(w.tie_word_embeddings, s.tie_word_embeddings, "a tied head");
    Same(w.hidden_act, s.hidden_act, "this activation");
    Same(w.qkv_bias, s.qkv_bias, "a bias of q, k and v");
    Same(w.o_bias, s.o_bias, "a bias of o");
    Same(w.mlp_bias, s.mlp_bias, "a bias of the MLP");
    Same(w.qk_norm, s.qk_norm, "these norms of queries and keys");
    Same(w.input_norms, s.input_norms, "norms before blocks");
    Same(w.post_norms, s.post_norms, "norms behind blocks");
    Same(w.fused_qkv, s.fused_qkv, "one linear of q, k and v");
    Same(w.fused_gate_up, s.fused_gate_up, "one linear of gate and up");
    Same(w.embed_scale, s.embed_scale, "a factor of the embedding");
    Same(w.residual_scale, s.residual_scale, "a factor of blocks");
    Same(w.logit_scale, s.logit_scale, "a factor of logits");
    Same(w.attention_scale, s.attention_scale, "a factor of scores");
    Same(w.attention_softcap, s.attention_softcap, "a cap of scores");
    Same(w.final_softcap, s.final_softcap, "a cap of logits");
    Same(w.layer_scalar, s.layer_scalar, "factors of layers:");
    Same(w.per_layer_size, s.per_layer_size, "hidden_size_per_layer_input");
    Same(w.per_layer_vocab, s.per_layer_vocab, "vocab_size_per_layer_input");
    Same(w.side_moe.num_experts, s.side_moe.num_experts, "num_experts");
    Same(w.side_moe.num_experts_per_tok, s.side_moe.num_experts_per_tok, "top_k_experts");
    Same(w.side_intermediate_size, s.side_intermediate_size, "moe_intermediate_size");
    Same(w.conv_taps, s.conv_taps, "taps of a convolution:");
    Same(w.moe.num_experts, s.moe.num_experts, "num_experts");
    Same(w.moe.num_experts_per_tok, s.moe.num_experts_per_tok, "num_experts_per_tok");
    Same(w.moe.norm_topk_prob, s.moe.norm_topk_prob, "weights of experts with a sum of 1:");
    Same(w.moe.expert_bias, s.moe.expert_bias, "a bias of the choice of experts:");
    Same(w.moe.routed_scaling_factor, s.moe.routed_scaling_factor, "routed_scaling_factor");
    for (std::int64_t l = 0; l < w.num_hidden_layers; ++l) Layer(l, stated);
  }

 private:
  [[noreturn]] void Refuse(const std::string& what) const {
    ThrowInvalidInput(
        "{}: has what no config.json of a {} can state: {}; give the checkpoint that the file was "
        "made from, or write a GGUF file (--format gguf)",
        where_, TextModelType(wanted_.model_type), what);
  }

  void Layer(std::int64_t l, const DecoderConfig& stated) const {
    const LayerConfig wanted = wanted_.layer(l);
    const LayerConfig layer = stated.layer(l);
    Same(wanted.mixer, layer.mixer, fmt::format("the mixer of layer {}", l));
    Same(wanted.is_dense, layer.is_dense, fmt::format("in layer {} an MLP without experts:", l));
    Same(wanted.intermediate_size, layer.intermediate_size,
         fmt::format("in layer {} an MLP of width", l));
    Same(wanted.window, layer.window, fmt::format("in layer {} a window of", l));
    const std::string sizes = fmt::format("the sizes of layer {}", l);
    Same(wanted.num_key_value_heads, layer.num_key_value_heads, sizes);
    Same(wanted.head_dim, layer.head_dim, sizes);
    Same(wanted.k_is_v, layer.k_is_v, fmt::format("values that are keys in layer {}:", l));
    Same(wanted.kv_layer, layer.kv_layer,
         fmt::format("in layer {} the keys and values of layer", l));
    const std::string rotary = fmt::format("the rotary embedding of layer {}", l);
    for (const auto& [a, b] : {std::pair(wanted.rope, layer.rope),
                               std::pair(wanted.rope_of_queries(), layer.rope_of_queries())}) {
      Same(a < 0, b < 0, rotary + " is missing:");
      if (a >= 0 && !TurnAlike(wanted_.ropes[a], stated.ropes[b])) Refuse(rotary);
    }
  }

  const DecoderConfig& wanted_;
  const std::string& where_;
};

}  // namespace

Json ConfigJsonOf(const DecoderConfig& config, const std::string& where) {
  const std::string model_type = TextModelType(config.model_type);
  const Family& family = FamilyOf(model_type, where);
  if (family.mixers == MixerRule::kDeltaRule || family.gpt_oss) {
    ThrowInvalidInput(
        "{}: a checkpoint of Hugging Face is not made of the GGUF file of a {} yet; give the "
        "checkpoint that the file was made from, or write a GGUF file (--format gguf)",
        where, model_type);
  }
  Json json = {
      {"architectures", Json::array({std::string(family.architecture)})},
      {"model_type", model_type},
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_attention_heads", config.num_attention_heads},
      {"num_key_value_heads", config.num_key_value_heads},
      {"head_dim", config.head_dim},
      {"max_position_embeddings", config.max_position_embeddings},
      {"rms_norm_eps", Shortest(config.rms_norm_eps)},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"hidden_act", config.hidden_act == Activation::kGeluTanh ? "gelu_pytorch_tanh" : "silu"}};
  // The classes of other families rotate whole heads, whatever the key says.
  const bool may_be_partial = family.fused_qkv || family.partial_rotary_factor != 1;
  for (const RopeConfig& rope : config.ropes) {
    if (rope.rotary_dim == config.head_dim || may_be_partial || family.gemma4) continue;
    ThrowInvalidInput("{}: {} of {} dims of a head rotate, which no config.json of a {} can state",
                      where, rope.rotary_dim, config.head_dim, model_type);
  }
  AddBiases(config, family, json);
  AddScales(config, family, json);
  if (family.moe) AddExperts(config, json);
  if (family.mixers == MixerRule::kShortConv) AddConvolutions(config, json);
  if (family.gemma4) {
    AddGemma4(config, json);
  } else {
    AddRopes(config, family, json);
    AddLayers(config, family, json);
  }
  Comparison(config, where).Run(ParseDecoderConfig(json, where));
  return json;
}

DType DenseTypeOf(const TensorType& embedding, const DecoderConfig& config) {
  if (!embedding.is_blocks()) return embedding;
  return FamilyOf(config.model_type, "").gemma ? DType::kBF16 : DType::kF16;
}

const char* TorchDtypeOf(DType tensors, const DecoderConfig& config) {
  if (tensors == DType::kF32) return "float32";
  const bool is_half = tensors == DType::kF16 && !FamilyOf(config.model_type, "").gemma;
  return is_half ? "float16" : "bfloat16";
}

}  // namespace qlora
