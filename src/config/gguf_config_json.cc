#include "config/gguf_config_json.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/text.h"
#include "config/gguf_config_gemma4.h"
#include "config/gguf_config_layers.h"
#include "config/gguf_config_rope.h"
#include "config/gguf_names.h"
#include "config/gguf_numbers.h"
#include "io/json.h"

namespace qlora {
namespace {

bool HasConvolutions(const Family& family) { return family.mixers == MixerRule::kShortConv; }

// The embedding has a row for each token, which llama.cpp demands.
std::int64_t VocabularySize(const GgufReader& file) {
  const TensorInfo* table = file.Find(kGgufEmbedding);
  if (table == nullptr)
    ThrowInvalidInput("{}: tensor '{}' is missing", file.where(), kGgufEmbedding);
  if (table->shape.size() != 2) {
    ThrowInvalidInput("{}: tensor '{}' has {} dimensions, expected 2", file.FileOf(*table),
                      kGgufEmbedding, table->shape.size());
  }
  const std::int64_t rows = table->shape[0];
  const auto* tokens = file.Get<std::vector<std::string>>("tokenizer.ggml.tokens");
  if (tokens != nullptr && std::ssize(*tokens) != rows) {
    ThrowInvalidInput("{}: tokenizer.ggml.tokens has {} tokens, and token_embd.weight {} rows",
                      file.where(), tokens->size(), rows);
  }
  return rows;
}

void AddSizes(const GgufKeys& keys, const Family& family, Json& json) {
  const std::int64_t blocks = keys.blocks();
  if (blocks < 1 || blocks > kMaxLayers) {
    ThrowInvalidInput("{}: num_hidden_layers is {}, expected 1 ... {}", keys.where(), blocks,
                      kMaxLayers);
  }
  // Blocks behind the layers predict several tokens at once, as drafts; they are no layers.
  const std::int64_t drafts = keys.Int("nextn_predict_layers", 0);
  if (drafts != 0 && family.mixers != MixerRule::kDeltaRule) {
    ThrowInvalidInput(
        "{}: nextn_predict_layers is {}, and a {} has no blocks that draft tokens: llama.cpp takes "
        "all of its blocks for layers; convert the model once more",
        keys.where(), drafts, family.model_type);
  }
  json["num_hidden_layers"] = blocks - drafts;
  for (const GgufNumber& row : GgufNumbers()) {
    if (!row.counts(family)) continue;
    json[row.config] = row.otherwise ? keys.Int(row.gguf, *row.otherwise) : keys.Int(row.gguf);
  }
  if (NumberAt(json, "max_position_embeddings") < 1) {
    ThrowInvalidInput("{}: context_length must be positive", keys.where());
  }
  json["vocab_size"] = VocabularySize(keys.file());
  json["rms_norm_eps"] = Shortest(keys.Double(gguf_key::kEpsilon));
  // Where llama.cpp always ties it, a head is a tensor too many.
  json["tie_word_embeddings"] = family.gguf.is_tied || keys.file().Find(kGgufHead) == nullptr;
}

// Of LFM2 and 3. Widths are meant as they are.
void AddConvolutions(const GgufKeys& keys, const Family& family, Json& json) {
  json["norm_eps"] = json["rms_norm_eps"];
  json["conv_bias"] = false;
  if (family.lfm2) json["block_auto_adjust_ff_dim"] = false;
  std::vector<bool> is_conv;
  for (const std::int64_t heads : GgufHeadsOrConvolutions(keys)) is_conv.push_back(heads == 0);
  AddLayerTypes(is_conv, "conv", json);
}

void AddBiases(const GgufKeys& keys, const Family& family, Json& json) {
  const GgufBiases biases = BiasesOf(keys.file(), family.gguf);
  const BiasRule rule = family.bias;
  const bool has_key = rule != BiasRule::kNone && rule != BiasRule::kQkvOnly;
  if (has_key) {
    json[rule == BiasRule::kAllByKey ? "use_bias" : "attention_bias"] = biases.qkv;
  }
  if (rule == BiasRule::kTwoKeys) json["attention_out_bias"] = biases.o;
  if (family.mlp_bias_key) json["mlp_bias"] = biases.mlp;
}

// Granite's. A multiplier of 0 is none.
void AddMultipliers(const GgufKeys& keys, Json& json) {
  keys.Double("logit_scale");  // must be there
  for (const auto& [gguf, config, written] : GgufMultipliers()) {
    const double value = keys.Double(gguf, 0);
    if (!(value >= 0 && value <= 1e6)) {
      ThrowInvalidInput("{}: {} is {}, expected a positive number", keys.where(), gguf, value);
    }
    json[config] = value == 0 ? 1 : Shortest(value);
  }
  if (keys.Double(gguf_key::kScale, 0) == 0) {
    json["attention_multiplier"] = 1 / std::sqrt(static_cast<double>(NumberAt(json, "head_dim")));
  }
}

// Activation, scales and caps.
void AddScales(const GgufKeys& keys, const Family& family, Json& json) {
  json["hidden_act"] = std::string(family.hidden_act);
  if (family.gemma) json["hidden_activation"] = json["hidden_act"];
  const auto cap = [&](const char* key, double otherwise) {
    const double value = keys.Double(key, otherwise);
    return value == 0 ? Json(nullptr) : Json(Shortest(value));
  };
  if (family.gemma4) json["final_logit_softcapping"] = cap("final_logit_softcapping", 30);
  if (family.query_scalar) {
    // The number of layers tells which Gemma it is: there is no key for the scale of scores.
    const bool is_27b = keys.blocks() == family.gguf.layers_of_27b;
    json["query_pre_attn_scalar"] =
        is_27b ? NumberAt(json, "hidden_size") / NumberAt(json, "num_attention_heads")
               : NumberAt(json, "head_dim");
    const auto* stated = keys.file().Get<float>(kGgufQueryScalar);
    if (stated != nullptr) json["query_pre_attn_scalar"] = Shortest(*stated);
    const bool is_capped = family.attention_softcap > 0;
    json["attn_logit_softcapping"] =
        is_capped ? cap("attn_logit_softcapping", family.attention_softcap) : Json(nullptr);
    json["final_logit_softcapping"] = cap("final_logit_softcapping", family.final_softcap);
    if (is_capped &&
        (json["attn_logit_softcapping"].is_null() || json["final_logit_softcapping"].is_null())) {
      ThrowInvalidInput("{}: attn_logit_softcapping and final_logit_softcapping must be positive",
                        keys.where());
    }
  }
  if (family.multipliers) AddMultipliers(keys, json);
}

// SmolLM3's layers that do not rotate.
void AddRotatingLayers(const GgufKeys& keys, const Family& family, Json& json) {
  if (family.no_rope_interval == 0) return;
  for (std::int64_t l = 0; l < keys.blocks(); ++l) {
    json["no_rope_layers"].push_back((l + 1) % family.no_rope_interval == 0 ? 0 : 1);
  }
}

}  // namespace

Json ConfigJsonOfKeys(const GgufKeys& keys, const Family& family) {
  Json json = {{"model_type", std::string(family.model_type)}};
  AddSizes(keys, family, json);
  if (family.gemma4) {
    ReadGgufGemma4Sizes(keys, json);
  } else {
    ReadGgufHeads(keys, family, json);
  }
  if (family.moe) ReadGgufExperts(keys, family, json);
  if (HasConvolutions(family)) AddConvolutions(keys, family, json);
  AddBiases(keys, family, json);
  AddScales(keys, family, json);
  ReadGgufRope(keys, family, json);
  if (family.gemma4) {
    ReadGgufGemma4Layers(keys, json);
  } else {
    ReadGgufWindows(keys, family, json);
    AddRotatingLayers(keys, family, json);
  }
  if (!family.output_gate_key.empty()) json[std::string(family.output_gate_key)] = true;
  return json;
}

bool HasInABlock(const GgufReader& file, std::initializer_list<std::string_view> names) {
  return std::ranges::any_of(file.tensors(), [&](const TensorInfo& tensor) {
    return std::ranges::find(names, GgufNameInBlock(tensor.name)) != names.end();
  });
}

GgufBiases BiasesOf(const GgufReader& file, const GgufFamily& family) {
  return {.qkv = family.qkv_bias && HasInABlock(file, {"attn_q.bias", "attn_qkv.bias"}),
          .o = family.o_bias && HasInABlock(file, {"attn_output.bias"}),
          .mlp = family.mlp_bias && HasInABlock(file, {"ffn_up.bias"})};
}

void AddLayerTypes(const std::vector<bool>& is_other, const char* other, Json& json) {
  const std::int64_t layers = NumberAt(json, "num_hidden_layers");
  if (!json.contains("layer_types")) {
    json["layer_types"] = std::vector<std::string>(layers, "full_attention");
  }
  for (std::int64_t l = 0; l < layers; ++l) {
    Json& type = json["layer_types"][l];
    if (is_other[l] && type == "full_attention") type = other;
  }
}

std::int64_t NumberAt(const Json& json, const char* key) {
  return json.at(key).get<std::int64_t>();
}

double Shortest(double value) {
  return ParseNumber<double>(fmt::format("{}", static_cast<float>(value))).value();
}

double LeastFactor(std::int64_t part, std::int64_t of) {
  const auto whole = static_cast<double>(of);
  double factor = static_cast<double>(part) / whole;
  while (static_cast<std::int64_t>(whole * factor) < part) factor = std::nextafter(factor, 2.0);
  return factor;
}

}  // namespace qlora
