// The keys of the file, with the rotary embedding in words that transformers knows. At the end the
// result is read again, so that nothing is lost without a word.
#include "convert/config_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "config/families.h"
#include "config/gguf_config.h"
#include "io/checkpoint_names.h"
#include "io/json.h"
#include "pass/rope.h"

namespace qlora {
namespace {

[[noreturn]] void Refuse(const std::string& where, std::string_view model_type,
                         const std::string& what) {
  ThrowInvalidInput(
      "{}: has what no config.json of a {} can state: {}; give the checkpoint that the file was "
      "made from, or write a GGUF file (--format gguf)",
      where, model_type, what);
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

// Names a layer whose rotary embedding is not the one wanted, and how. Empty: all are.
std::string OtherRope(const DecoderConfig& wanted, const DecoderConfig& stated) {
  for (std::int64_t l = 0; l < wanted.num_hidden_layers; ++l) {
    const LayerConfig& layer = wanted.layers[l];
    const LayerConfig& found = stated.layers[l];
    for (const auto& [a, b] : {std::pair(layer.rope, found.rope),
                               std::pair(layer.rope_of_queries(), found.rope_of_queries())}) {
      if ((a < 0) != (b < 0)) return fmt::format("the rotary embedding of layer {} is missing", l);
      if (a < 0 || TurnAlike(wanted.ropes[a], stated.ropes[b])) continue;
      return fmt::format("the rotary embedding of layer {}", l);
    }
  }
  return "";
}

// The same table as lists of divisors.
Json Longrope(const RopeConfig& rope, const DecoderConfig& config) {
  std::vector<double> lists[] = {rope.short_factor, rope.long_factor};
  std::int64_t original = rope.original_max_position_embeddings;
  if (rope.type != RopeType::kLongrope) {
    // Without an effect: both lists are one.
    original = config.max_position_embeddings;
    const double factor = rope.type == RopeType::kLinear ? rope.factor : 1;
    for (std::vector<double>& list : lists) {
      list.assign(rope.rotary_dim / 2, factor);
      for (std::size_t i = 0; i < rope.divisors.size(); ++i) list[i] *= rope.divisors[i];
    }
  }
  return {{"rope_type", "longrope"},
          {"short_factor", lists[0]},
          {"long_factor", lists[1]},
          {"attention_factor", rope.attention_factor},
          {"original_max_position_embeddings", original}};
}

// What rope_scaling of `rope` may be, the best spelling first. as_is: by the keys of the file.
std::vector<Json> Spellings(const RopeConfig& rope, const DecoderConfig& config,
                            const Family& family, const Json& as_is) {
  const bool is_plain = rope.type == RopeType::kDefault || rope.type == RopeType::kLinear;
  const bool may_be_listed = is_plain || rope.type == RopeType::kLongrope;
  if (!may_be_listed && family.scales_by_lists) return {};
  if (family.ropes_by_type || !may_be_listed) return {as_is};
  const Json lists = Longrope(rope, config);
  if (family.scales_by_lists) {
    // transformers 4 takes three keys, and computes the factor; a fourth is for transformers 5.
    Json three = {{"type", "longrope"},
                  {"short_factor", lists.at("short_factor")},
                  {"long_factor", lists.at("long_factor")}};
    Json four = three;
    four["attention_factor"] = rope.attention_factor;
    if (rope.type == RopeType::kDefault) return {as_is, std::move(three), std::move(four)};
    return {std::move(three), std::move(four)};
  }
  std::vector<Json> spellings = {as_is};
  const auto add = [&](const Json& keys) {
    spellings.push_back(as_is.is_object() ? as_is : Json::object());
    spellings.back().erase("factor");
    spellings.back().update(keys);
  };
  if (!rope.divisors.empty()) {
    // The scaling of Llama 3.1 to 3.3, of which a file holds the divisors.
    add({{"rope_type", "llama3"},
         {"factor", std::ranges::max(rope.divisors)},
         {"low_freq_factor", 1.0},
         {"high_freq_factor", 4.0},
         {"original_max_position_embeddings", 8192}});
  }
  if (is_plain) add(lists);
  return spellings;
}

// Puts the first spelling into `json` that turns as the file does, and returns what it is read as.
DecoderConfig StateRope(const DecoderConfig& config, const Family& family, const std::string& where,
                        Json& json) {
  // A table of queries that grow is the table of keys and one number more.
  const RopeConfig& rope = config.ropes[config.layers[0].query_rope < 0 ? 0 : 1];
  const char* const key = json.contains("rope_parameters") ? "rope_parameters" : "rope_scaling";
  std::string other;
  for (const Json& spelling : Spellings(rope, config, family, json.at(key))) {
    Json spelled = json;
    spelled[key] = spelling;
    if (spelling.is_object() && spelling.contains("short_factor")) {
      spelled["original_max_position_embeddings"] =
          Longrope(rope, config).at("original_max_position_embeddings");
    }
    DecoderConfig stated = ParseDecoderConfig(spelled, where);
    const std::string found = OtherRope(config, stated);
    if (found.empty()) {
      json = std::move(spelled);
      return stated;
    }
    if (other.empty()) other = found;
  }
  Refuse(where, family.model_type, other.empty() ? "YaRN" : other);
}

// Names something that only the file has.
const char* UnstatedIn(const DecoderConfig& stated, const DecoderConfig& wanted) {
  if (stated.qkv_bias != wanted.qkv_bias) return "a bias of q, k and v (attn_q.bias)";
  if (stated.o_bias != wanted.o_bias) return "a bias of o (attn_output.bias)";
  if (stated.mlp_bias != wanted.mlp_bias) return "a bias of the MLP (ffn_up.bias)";
  if (stated.post_norms != wanted.post_norms) return "blocks without norms behind them";
  return "the sizes of its layers, or the layers that share keys and values";
}

}  // namespace

Json ConfigJsonOf(const GgufReader& file) {
  const std::string where = file.where();
  DecoderConfig config = ParseGgufConfig(file);
  Json json = GgufConfigJson(file);
  // For text, models that see compute what models of text alone compute.
  const std::string_view of_text = FamilyOf(config.model_type, where).of_text;
  const Family& family =
      FamilyOf(of_text.empty() ? config.model_type : std::string(of_text), where);
  json["model_type"] = std::string(family.model_type);
  json["architectures"] = Json::array({std::string(family.architecture)});
  if (!of_text.empty()) {
    Json& scaling = json["rope_scaling"];
    if (scaling.is_object()) scaling.erase("mrope_section");
    if (scaling == Json{{"rope_type", "default"}}) scaling = nullptr;
  }
  // The classes of other families rotate whole heads, whatever the key says.
  const bool may_be_partial =
      family.scales_by_lists || family.partial_rotary_factor != 1 || family.ropes_by_type;
  for (const RopeConfig& rope : config.ropes) {
    if (rope.rotary_dim == config.head_dim || may_be_partial) continue;
    Refuse(where, family.model_type,
           fmt::format("{} of {} dims of a head rotate", rope.rotary_dim, config.head_dim));
  }
  DecoderConfig stated = StateRope(config, family, where, json);
  // What is the same in other words, and what the order and the values of tensors are in the file
  // alone.
  stated.model_type = config.model_type;
  stated.architecture = config.architecture;
  stated.ropes = config.ropes;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    config.layers[l] = config.layer(l);
    stated.layers[l] = stated.layer(l);
    stated.layers[l].rope = config.layers[l].rope;
    stated.layers[l].query_rope = config.layers[l].query_rope;
  }
  stated.one_plus_norm = config.one_plus_norm;
  stated.delta_rule.tiled = config.delta_rule.tiled;
  stated.notes = config.notes;
  if (stated != config) Refuse(where, family.model_type, UnstatedIn(stated, config));
  return json;
}

std::string DropUnwrittenMtp(const std::vector<TensorInfo>& written, const DecoderConfig& decoder,
                             Json& config) {
  const auto is_mtp = [&](const TensorInfo& tensor) {
    const auto place = PlaceInDecoder(tensor.name);
    return tensor.name.starts_with("mtp.") || tensor.name.find(".mtp.") != std::string::npos ||
           (place && place->layer >= decoder.num_hidden_layers);
  };
  if (std::ranges::any_of(written, is_mtp)) return "";
  std::string dropped;
  const auto drop = [&](Json& object) {
    for (const char* key : {"mtp_num_hidden_layers", "num_nextn_predict_layers"}) {
      const auto found = object.find(key);
      if (found == object.end() || !found->is_number() || *found == 0) continue;
      *found = 0;
      dropped = key;
    }
  };
  drop(config);
  if (config.contains("text_config") && config["text_config"].is_object()) {
    drop(config["text_config"]);
  }
  if (dropped.empty()) return "";
  return fmt::format(
      "{} is 0 in the config.json that was written: the model has no tensors of the layers that it "
      "declares (MTP)",
      dropped);
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
