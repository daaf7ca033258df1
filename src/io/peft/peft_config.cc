#include "io/peft/peft_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>

#include "base/check.h"
#include "base/file.h"
#include "base/text.h"
#include "io/checkpoint_names.h"
#include "io/json.h"
#include "io/pattern.h"
#include "io/peft/adapter_source.h"

namespace qlora {
namespace {

// Settings that change the result of the adapter or its set of tensors.
constexpr std::string_view kUnsupported =
    "use_qalora megatron_config layer_replication lora_bias use_bdlora arrow_config kasa_config "
    "alora_invocation_tokens monteclora_config velora_config";

// Settings of PEFT that do not matter once the adapter is trained.
constexpr std::string_view kInert =
    "auto_mapping inference_mode peft_version runtime_config qalora_group_size megatron_core "
    "loftq_config eva_config corda_config lora_ga_config";

constexpr std::string_view kUsed =
    "peft_type task_type base_model_name_or_path revision r lora_alpha lora_dropout target_modules "
    "exclude_modules modules_to_save ensure_weight_tying fan_in_fan_out use_rslora use_dora "
    "rank_pattern alpha_pattern layers_to_transform layers_pattern init_lora_weights bias "
    "target_parameters trainable_token_indices";

// Initialisations after which the base is no longer the published one.
constexpr const char* kBaseChanging[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};

// Initialisations that leave the base as it is: of no matter once the adapter is trained.
constexpr const char* kBaseKeeping[] = {"gaussian", "eva", "orthogonal", "mica", "true", "false"};

bool IsOff(const Json& value) {
  // PEFT writes all its settings, also unused ones: only a value with an effect counts.
  return value.is_null() || value == false || value == 0 || value == "" ||
         (value.is_structured() && value.empty());
}

// mlx-lm has a file of the same name with other keys.
bool IsMlx(const Json& json) {
  return json.is_object() && !json.contains("peft_type") &&
         (json.contains("fine_tune_type") || json.contains("lora_parameters"));
}

void CheckSupported(const Json& json, const std::string& where) {
  const auto peft_type = JsonGetOr<std::string>(json, "peft_type", "", where);
  if (peft_type != "LORA") {
    ThrowInvalidInput("{}: key 'peft_type': expected \"LORA\", found \"{}\"{}", where, peft_type,
                      IsMlx(json) ? "; it looks like an adapter of mlx-lm, whose weights are in "
                                    "adapters.safetensors"
                                  : "");
  }
  for (const std::string_view word : Words(kUnsupported)) {
    const std::string key(word);
    if (json.contains(key) && !IsOff(json[key])) {
      ThrowInvalidInput("{}: key '{}' is set; adapters with this setting are not supported", where,
                        key);
    }
  }
  const auto bias = JsonGetOr<std::string>(json, "bias", "none", where);
  // Trained biases are whole tensors of the file, whichever of the two kept them.
  if (bias != "none" && bias != "all" && bias != "lora_only") {
    ThrowInvalidInput("{}: key 'bias': expected \"none\", \"all\" or \"lora_only\", found \"{}\"",
                      where, bias);
  }
  const Json* init = FindJson(json, "init_lora_weights", where);
  if (init != nullptr && init->is_string()) {
    const std::string name = init->get<std::string>();
    // Prefixes, since there are variants: "pissa_niter_16".
    for (const char* prefix : kBaseChanging) {
      if (!name.starts_with(prefix)) continue;
      ThrowInvalidInput(
          "{}: key 'init_lora_weights': \"{}\" also changes the base model; save the "
          "adapter in PEFT with path_initial_model_for_weight_conversion, which "
          "turns it into a plain one",
          where, name);
    }
    const bool keeps = std::any_of(std::begin(kBaseKeeping), std::end(kBaseKeeping),
                                   [&](const char* known) { return LowerCase(name) == known; });
    if (!keeps) {
      ThrowInvalidInput(
          "{}: key 'init_lora_weights': \"{}\" is not known here; if it leaves the weights of the "
          "base as they are, write true in its place, otherwise save the adapter in PEFT with "
          "path_initial_model_for_weight_conversion",
          where, name);
    }
  }
}

// A list of ids belongs to the embeddings; an object names the modules.
std::vector<std::pair<std::string, std::vector<std::int64_t>>> TokenIndicesOf(
    const Json& json, const std::string& where) {
  const char* key = "trainable_token_indices";
  const Json* value = FindJson(json, key, where);
  if (value == nullptr || IsOff(*value)) return {};
  const auto ids_of = [&](const Json& list) {
    return JsonAs<std::vector<std::int64_t>>(list, key, where);
  };
  if (value->is_array()) return {{"embed_tokens", ids_of(*value)}};
  if (!value->is_object()) {
    ThrowInvalidInput("{}: key '{}': expected a list of token ids, or an object of such lists",
                      where, key);
  }
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> out;
  for (const auto& [module, ids] : value->items()) out.emplace_back(module, ids_of(ids));
  return out;
}

ModuleSelection SelectionOf(const Json& json, const char* key, const std::string& where) {
  const Json* value = FindJson(json, key, where);
  if (value == nullptr) return {};
  // A text is a regular expression, a list holds names: PEFT's own distinction.
  if (value->is_string()) return value->get<std::string>();
  return JsonAs<std::vector<std::string>>(*value, key, where);
}

// Reads a list, one value in place of a list, or nothing.
template <typename T>
std::vector<T> ListOf(const Json& json, const char* key, const std::string& where) {
  const Json* value = FindJson(json, key, where);
  if (value == nullptr) return {};
  if (value->is_array()) return JsonAs<std::vector<T>>(*value, key, where);
  return {JsonAs<T>(*value, key, where)};
}

// The order of the keys decides between patterns, so it is taken from the text.
template <typename T>
std::vector<std::pair<std::string, T>> PatternsOf(const std::string& text, const Json& json,
                                                  const char* key, const std::string& where) {
  std::vector<std::pair<std::string, T>> out;
  const Json* value = FindJson(json, key, where);
  if (value == nullptr) return out;
  if (!value->is_object()) {
    ThrowInvalidInput("{}: key '{}': expected an object, found {}", where, key, value->type_name());
  }
  if (value->empty()) return out;
  // Parsed again only where there are patterns. `json` sorts its keys; Python keeps the order of
  // the file.
  const OrderedJson ordered = ParseOrderedJson(text, where);
  for (const auto& item : ordered.at(key).items()) {
    out.emplace_back(item.key(), JsonAs<T>(value->at(item.key()), key, where));
  }
  return out;
}

void CheckNumbers(const AdapterConfig& config, const std::string& where) {
  const auto check_rank = [&](std::int64_t r, const char* key) {
    if (r < 1)
      ThrowInvalidInput("{}: key '{}': a rank must be at least 1, found {}", where, key, r);
  };
  check_rank(config.r, "r");
  for (const auto& [pattern, r] : config.rank_pattern) check_rank(r, "rank_pattern");
  // Negated, so that NaN fails too. At 1 the factor 1 / (1 - p) would be infinite.
  if (!(config.lora_dropout >= 0 && config.lora_dropout < 1)) {
    ThrowInvalidInput("{}: key 'lora_dropout': expected 0 <= p < 1, found {}", where,
                      config.lora_dropout);
  }
}

void CheckSelection(const AdapterConfig& config, const std::string& where) {
  const bool regex = std::holds_alternative<std::string>(config.target_modules);
  const bool others = !config.target_parameters.empty() || !config.trainable_token_indices.empty();
  if (!regex && !others && std::get<std::vector<std::string>>(config.target_modules).empty()) {
    ThrowInvalidInput(
        "{}: key 'target_modules' is missing; list the modules that carry the "
        "adapter, such as [\"q_proj\", \"v_proj\"]",
        where);
  }
  // PEFT refuses the two together; read alone, the expression would adapt all layers.
  if (regex && !(config.layers_to_transform.empty() && config.layers_pattern.empty())) {
    ThrowInvalidInput(
        "{}: key '{}' cannot be combined with a regular expression in "
        "target_modules",
        where, config.layers_pattern.empty() ? "layers_to_transform" : "layers_pattern");
  }
  if (config.layers_to_transform.empty() && !config.layers_pattern.empty()) {
    ThrowInvalidInput("{}: key 'layers_pattern' needs layers_to_transform", where);
  }
}

Json NullOr(const std::string& text) { return text.empty() ? Json() : Json(text); }

template <typename T>
Json NullOr(const std::vector<T>& list) {
  return list.empty() ? Json() : Json(list);
}

// 16, not 16.0: Python prints an int as an int.
Json Number(double value) {
  const bool whole = value == std::floor(value) && std::abs(value) < 0x1p53;
  return whole ? Json(static_cast<std::int64_t>(value)) : Json(value);
}

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool is_plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
    if (!is_plain) out += '\\';
    out += c;
  }
  return out;
}

// Whether the class has encoders beside the text model. Without a prefix it is the text model
// itself.
bool IsWrapped(const AdapterConfig& config) {
  return !config.module_prefix.empty() && config.module_prefix != "model.";
}

// An expression for the modules of the text model that target_modules lists. Names alone would
// select those of encoders, too, which PEFT adapts as well, or refuses by their class.
std::string InTextModel(const AdapterConfig& config) {
  std::vector<std::string> names;
  std::string whole;  // paths
  for (const std::string& name : std::get<std::vector<std::string>>(config.target_modules)) {
    if (name == "lm_head" || IsEmbedding(name)) {
      const std::string path = SpelledPath(config, name == "lm_head" ? name : "model." + name);
      // A table is in no layer: only its path selects it beside a choice of layers.
      if (config.layers_to_transform.empty() || path == name) whole += "|" + Escaped(path);
    } else if (name.starts_with(config.module_prefix)) {
      whole += "|" + Escaped(name);
    } else {
      names.push_back(Escaped(name));
    }
  }
  if (names.empty()) return whole.empty() ? whole : whole.substr(1);
  std::string layers = R"(\d+)";
  if (!config.layers_to_transform.empty()) {
    layers = fmt::format("(?:{})", fmt::join(config.layers_to_transform, "|"));
  }
  return fmt::format(R"((?={}layers\.{}\.)(?:.*\.)?(?:{}){})", Escaped(config.module_prefix),
                     layers, fmt::join(names, "|"), whole);
}

Json SelectionJson(const ModuleSelection& selection) {
  if (const auto* regex = std::get_if<std::string>(&selection)) return *regex;
  return NullOr(std::get<std::vector<std::string>>(selection));
}

bool IsSelected(const std::vector<std::string>& names, std::string_view module) {
  return std::ranges::any_of(names, [&](const std::string& name) {
    // "proj" does not select "q_proj": a name is one or more whole parts of a path, at its end.
    return module == name || module.ends_with("." + name);
  });
}

// The place of a linear of one expert where all experts are one parameter.
struct ExpertPath {
  std::string experts;    // "model.layers.0.mlp.experts"
  std::string parameter;  // "gate_up_proj" or "down_proj"
};

// Nothing for modules that are no linears of an expert.
std::optional<ExpertPath> ExpertPathOf(std::string_view module) {
  constexpr std::string_view kExperts = ".experts.";
  const std::size_t at = module.find(kExperts);
  const std::size_t dot = module.rfind('.');
  // ".experts.", the number, "."
  if (at == std::string_view::npos || dot <= at + kExperts.size()) return std::nullopt;
  const std::string_view name = module.substr(dot + 1);
  const bool down = name == "down_proj" || name == "w2";
  return ExpertPath{std::string(module.substr(0, at + kExperts.size() - 1)),
                    down ? "down_proj" : "gate_up_proj"};
}

// The path of the parameter that the adapter names in the place of this module: the weight of a
// linear, or what holds this linear of an expert; nothing for other modules. `module` is spelled as
// the adapter does.
std::optional<std::string> ParameterOf(const AdapterConfig& config, std::string_view module) {
  if (config.target_parameters.empty()) return std::nullopt;
  const std::optional<ExpertPath> expert = ExpertPathOf(module);
  if (!expert) {
    const std::string weight = std::string(module) + ".weight";
    return IsSelected(config.target_parameters, weight) ? std::optional(weight) : std::nullopt;
  }
  // The class of Mixtral calls the block mlp since its experts are parameters.
  const std::string experts = ReplaceAll(expert->experts, ".block_sparse_moe.", ".mlp.");
  for (const std::string& path : {experts, expert->experts}) {
    const std::string parameter = path + "." + expert->parameter;
    if (IsSelected(config.target_parameters, parameter)) return parameter;
  }
  return std::nullopt;
}

bool IsExcluded(const AdapterConfig& config, std::string_view module) {
  if (const auto* regex = std::get_if<std::string>(&config.exclude_modules)) {
    if (!regex->empty() && FullMatch(*regex, module, "exclude_modules")) return true;
  } else if (IsSelected(std::get<std::vector<std::string>>(config.exclude_modules), module)) {
    return true;
  }
  return std::ranges::any_of(config.modules_to_save, [&](const std::string& name) {
    return MatchesAtStart(R"((^|.*\.))" + name + R"(($|\..*))", module, "modules_to_save");
  });
}

// Returns the number of the layer that holds the module: that behind the first name in
// layers_pattern that the path contains, or behind any name.
std::optional<std::int64_t> LayerOf(const AdapterConfig& config, std::string_view module) {
  std::vector<std::string> names = config.layers_pattern;
  if (names.empty()) names = {R"([^.]*)"};
  for (const std::string& name : names) {
    const auto digits = GroupAtStart(R"(.*?\.)" + name + R"(\.(?<layer>[0-9]+)\.)", module,
                                     "layers_pattern", "layer");
    if (digits) return ParseNumber<std::int64_t>(*digits);
  }
  return std::nullopt;
}

template <typename T>
T PatternValue(const std::vector<std::pair<std::string, T>>& patterns, std::string_view module,
               T fallback, const char* key) {
  for (const auto& [pattern, value] : patterns) {
    // PEFT's get_pattern_key: the pattern matches the end of the path, from the beginning of a part
    // on.
    if (MatchesAtStart(R"((.*\.)?()" + pattern + ")$", module, key)) return value;
  }
  return fallback;
}

}  // namespace

AdapterConfig ParseAdapterConfig(const std::string& text, const std::string& where,
                                 std::vector<std::string>& unknown_keys) {
  const Json json = ParseJson(text, where, DuplicateKeys::kRefuse);
  CheckSupported(json, where);
  const AdapterConfig defaults;
  AdapterConfig config;
  config.base_model_name_or_path =
      JsonGetOr<std::string>(json, "base_model_name_or_path", "", where);
  config.revision = JsonGetOr<std::string>(json, "revision", "", where);
  config.task_type = JsonGetOr<std::string>(json, "task_type", "", where);
  config.r = JsonGetOr<std::int64_t>(json, "r", defaults.r, where);
  config.lora_alpha = JsonGetOr<double>(json, "lora_alpha", defaults.lora_alpha, where);
  config.lora_dropout = JsonGetOr<double>(json, "lora_dropout", defaults.lora_dropout, where);
  config.target_modules = SelectionOf(json, "target_modules", where);
  config.exclude_modules = SelectionOf(json, "exclude_modules", where);
  for (const std::string& name : ListOf<std::string>(json, "modules_to_save", where)) {
    // PEFT adds the path of the other table where both are tied.
    const std::string last = name.substr(name.rfind('.') + 1);
    const bool embeds = IsEmbedding(last);
    if (embeds) config.embedding = last;
    const std::string own = embeds ? "embed_tokens" : last == "lm_head" ? last : name;
    std::vector<std::string>& saved = config.modules_to_save;
    if (std::ranges::count(saved, own) == 0) saved.push_back(own);
  }
  config.ensure_weight_tying = JsonGetOr<bool>(json, "ensure_weight_tying", false, where);
  config.fan_in_fan_out = JsonGetOr<bool>(json, "fan_in_fan_out", false, where);
  config.use_rslora = JsonGetOr<bool>(json, "use_rslora", false, where);
  config.use_dora = JsonGetOr<bool>(json, "use_dora", false, where);
  config.rank_pattern = PatternsOf<std::int64_t>(text, json, "rank_pattern", where);
  config.alpha_pattern = PatternsOf<double>(text, json, "alpha_pattern", where);
  config.layers_to_transform = ListOf<std::int64_t>(json, "layers_to_transform", where);
  config.layers_pattern = ListOf<std::string>(json, "layers_pattern", where);
  std::erase(config.layers_pattern, "");  // the same as none
  config.target_parameters = ListOf<std::string>(json, "target_parameters", where);
  config.trainable_token_indices = TokenIndicesOf(json, where);
  CheckNumbers(config, where);
  CheckSelection(config, where);
  for (const auto& [key, value] : json.items()) {
    if (!HasWord(kUsed, key) && !HasWord(kInert, key) && !HasWord(kUnsupported, key)) {
      unknown_keys.push_back(key);
    }
  }
  return config;
}

std::string BaseOfAdapter(const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / kAdapterConfig;
  if (FormatOfAdapter(directory) == AdapterFormat::kMlx) {
    return JsonGetOr<std::string>(ReadJsonFile(file), "model", "", file.string());
  }
  const std::string text = ReadTextFile(file);
  std::vector<std::string> unknown_keys;
  return ParseAdapterConfig(text, file.string(), unknown_keys).base_model_name_or_path;
}

std::string FormatAdapterConfig(const AdapterConfig& config) {
  Json ranks = Json::object();
  for (const auto& [pattern, r] : config.rank_pattern) ranks[pattern] = r;
  std::vector<std::string> saved = config.modules_to_save;
  std::ranges::replace(saved, "embed_tokens", config.embedding);
  Json alphas = Json::object();
  for (const auto& [pattern, alpha] : config.alpha_pattern) alphas[pattern] = Number(alpha);
  Json json = {{"peft_type", "LORA"},
               {"task_type", NullOr(config.task_type)},
               {"base_model_name_or_path", NullOr(config.base_model_name_or_path)},
               {"revision", NullOr(config.revision)},
               {"inference_mode", true},
               {"r", config.r},
               {"lora_alpha", Number(config.lora_alpha)},
               {"lora_dropout", config.lora_dropout},
               {"target_modules", SelectionJson(config.target_modules)},
               {"modules_to_save", NullOr(saved)},
               {"bias", "none"},
               {"fan_in_fan_out", config.fan_in_fan_out},
               {"init_lora_weights", true},
               {"use_rslora", config.use_rslora},
               {"use_dora", config.use_dora},
               {"rank_pattern", ranks},
               {"alpha_pattern", alphas},
               {"layers_to_transform", NullOr(config.layers_to_transform)},
               {"layers_pattern", NullOr(config.layers_pattern)}};
  if (IsWrapped(config) && json["target_modules"].is_array()) {
    json["target_modules"] = InTextModel(config);
    json["layers_to_transform"] = json["layers_pattern"] = Json();
  }
  // These keys are younger than the other keys. They are left out when they are empty, for older
  // versions of PEFT.
  if (!config.target_parameters.empty()) {
    json["target_parameters"] = config.target_parameters;
    // Without modules PEFT would choose some.
    if (json["target_modules"].is_null()) json["target_modules"] = Json::array();
  }
  for (const auto& [module, ids] : config.trainable_token_indices) {
    json["trainable_token_indices"][module] = ids;
  }
  const Json excluded = SelectionJson(config.exclude_modules);
  if (!IsOff(excluded)) json["exclude_modules"] = excluded;
  return json.dump(2, ' ', true, Json::error_handler_t::replace);
}

std::string SpelledPath(const AdapterConfig& config, std::string_view module) {
  constexpr std::string_view kModel = "model.";
  if (module.starts_with(kModel)) {
    const std::string_view rest = module.substr(kModel.size());
    return config.module_prefix + (IsEmbedding(rest) ? config.embedding : std::string(rest));
  }
  // The first generation of multimodal classes holds a whole language model, head included.
  const bool inside = config.module_prefix == "language_model.model.";
  return (inside && module == "lm_head" ? "language_model." : "") + std::string(module);
}

bool IsTargetModule(const AdapterConfig& config, std::string_view path) {
  const std::string module = SpelledPath(config, path);
  // Experts in one tensor are parameters, which target_modules cannot name; PEFT has neither
  // exclusions nor a choice of layers for them.
  if (!config.target_parameters.empty() && ExpertPathOf(module)) {
    return ParameterOf(config, module).has_value();
  }
  // So may the weight of any other module be a parameter.
  if (IsSelected(config.target_parameters, module + ".weight")) return true;
  if (IsExcluded(config, module)) return false;
  if (const auto* regex = std::get_if<std::string>(&config.target_modules)) {
    // The one word that is not an expression: every linear but the output head.
    if (LowerCase(*regex) == "all-linear") {
      return !IsSelected({"lm_head", "embed_tokens"}, module);
    }
    return FullMatch(*regex, module, "target_modules");
  }
  const auto& names = std::get<std::vector<std::string>>(config.target_modules);
  // A full path in the list wins over the choice of layers.
  if (std::ranges::find(names, module) != names.end()) return true;
  if (!IsSelected(names, module)) return false;
  if (config.layers_to_transform.empty()) return true;
  const std::optional<std::int64_t> layer = LayerOf(config, module);
  return layer &&
         std::ranges::find(config.layers_to_transform, *layer) != config.layers_to_transform.end();
}

std::string PatternPath(const AdapterConfig& config, std::string_view module) {
  const std::string spelled = SpelledPath(config, module);
  return ParameterOf(config, spelled).value_or(spelled);
}

std::int64_t RankOf(const AdapterConfig& config, std::string_view module) {
  return PatternValue(config.rank_pattern, PatternPath(config, module), config.r, "rank_pattern");
}

double AlphaOf(const AdapterConfig& config, std::string_view module) {
  return PatternValue(config.alpha_pattern, PatternPath(config, module), config.lora_alpha,
                      "alpha_pattern");
}

double ScaleOf(const AdapterConfig& config, std::string_view module) {
  const auto rank = static_cast<double>(RankOf(config, module));
  // LoRA (arXiv:2106.09685): alpha / r.   rsLoRA (arXiv:2312.03732): alpha / sqrt(r), by which
  // updates keep their size as r grows.
  return AlphaOf(config, module) / (config.use_rslora ? std::sqrt(rank) : rank);
}

}  // namespace qlora
