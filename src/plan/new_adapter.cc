#include "plan/new_adapter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "adapter/expert_stack.h"
#include "adapter/fitted_adapter.h"
#include "adapter/lora_init.h"
#include "base/check.h"
#include "base/text.h"
#include "io/peft/peft.h"
#include "model/gguf_source.h"
#include "model/linear_shapes.h"
#include "plan/target_modules.h"

namespace qlora {
namespace {

// More than the width of any model. Below it the sizes of adapters cannot overflow.
constexpr std::int64_t kMostRank = std::int64_t{1} << 24;

// Splits the entries of an option into pattern and value: "down_proj=8" -> ("down_proj", 8). The
// last '=' divides them, because a regular expression may contain others. Errors: InvalidInput for
// an entry without a positive number.
std::vector<std::pair<std::string, double>> ToPatterns(const char* key,
                                                       const std::vector<std::string>& entries) {
  std::vector<std::pair<std::string, double>> out;
  for (const std::string& entry : entries) {
    const std::size_t equals = entry.rfind('=');
    const double value = equals == std::string::npos || equals == 0
                             ? 0
                             : ParseNumber<double>(entry.substr(equals + 1)).value_or(0);
    if (!(value > 0)) {
      ThrowInvalidInput("{}: expected module=value with a positive value, found '{}'", key, entry);
    }
    out.emplace_back(entry.substr(0, equals), value);
  }
  return out;
}

// The rank of an entry of rank_pattern. The limit is checked before the conversion, which is
// undefined for numbers beyond int64.
std::int64_t ToRank(double value) {
  if (value != std::floor(value)) {
    ThrowInvalidInput("rank_pattern: a rank is a whole number, found {}", value);
  }
  if (value > static_cast<double>(kMostRank)) CheckRank("rank_pattern", kMostRank + 1);
  return static_cast<std::int64_t>(value);
}

// Doubles the ranks and keeps the scales. The scale is alpha / r, or alpha / sqrt(r) with rsLoRA,
// so alpha grows by 2 or by sqrt(2).
void DoubleRank(AdapterConfig& config) {
  const double factor = config.use_rslora ? std::sqrt(2.0) : 2.0;
  config.r *= 2;
  config.lora_alpha *= factor;
  for (auto& [pattern, rank] : config.rank_pattern) rank *= 2;
  for (auto& [pattern, alpha] : config.alpha_pattern) alpha *= factor;
}

// True when the selection targets the linear at `path`, by the rules of lora_target_modules.
bool Matches(const ModuleSelection& selection, const std::string& path) {
  AdapterConfig one;
  one.target_modules = selection;
  return IsTargetModule(one, path);
}

// Refuses an entry that selects none of `paths`: a misspelt name would be silently ignored.
void CheckMatch(const char* key, const std::string& entry, const std::vector<std::string>& paths,
                const std::vector<std::string>& known,
                const std::function<bool(const std::string& path)>& matches) {
  if (std::any_of(paths.begin(), paths.end(), matches)) return;
  ThrowInvalidInput("{}: '{}' matches none of {}", key, entry, fmt::join(known, ", "));
}

// Refuses each entry of a selection that matches none of `paths`. A regular expression is a single
// entry. known: the names that the error offers.
void CheckSelection(const char* key, const ModuleSelection& selection,
                    const std::vector<std::string>& paths, const std::vector<std::string>& known) {
  std::vector<std::pair<std::string, ModuleSelection>> entries;
  if (const auto* regex = std::get_if<std::string>(&selection)) {
    if (!regex->empty()) entries.emplace_back(*regex, *regex);
  } else {
    for (const std::string& name : std::get<std::vector<std::string>>(selection)) {
      entries.emplace_back(name, std::vector<std::string>{name});
    }
  }
  for (const auto& [text, entry] : entries) {
    CheckMatch(key, text, paths, known,
               [&entry = entry](const std::string& path) { return Matches(entry, path); });
  }
}

// A LoRA on the tables of other trainers' adapters is read, not trained.
void CheckNoTable(const ModuleSelection& selection) {
  const auto* names = std::get_if<std::vector<std::string>>(&selection);
  if (names == nullptr) return;
  for (const std::string& name : *names) {
    const std::string last = name.substr(name.rfind('.') + 1);
    if (last != "lm_head" && last != "embed_tokens") continue;
    ThrowInvalidInput(
        "lora_target_modules: the model has '{0}', but a LoRA on it is not trained here; to train "
        "it as a whole give --modules-to-save {0}, otherwise leave it out",
        last);
  }
}

// The names of the experts' parameters in lora_target_modules.
std::vector<std::string> ParameterNames(const DecoderConfig& decoder) {
  if (!decoder.joins_experts()) return {};
  // The MLP beside experts has a down_proj too.
  const std::string module = decoder.moe.is_joined ? "" : JoinedExpertsName(decoder) + ".";
  return {module + "gate_up_proj", module + "down_proj"};
}

// Every name and every pattern must match something in this model.
void CheckNames(const AdapterConfig& config, const DecoderConfig& decoder) {
  std::vector<std::string> modules;
  std::vector<std::string> experts;  // linears that are parts of a parameter
  for (std::int64_t l = 0; l < decoder.num_hidden_layers; ++l) {
    LinearPaths(decoder, l).ForEach([&](const std::string& path) {
      (IsJoinedExpert(decoder, path) ? experts : modules).push_back(path);
    });
  }
  const std::vector<std::string> names = LinearNamesOf(decoder);
  std::vector<std::string> known = names;
  for (const std::string& name : ParameterNames(decoder)) known.push_back(name);
  CheckNoTable(config.target_modules);
  CheckSelection("lora_target_modules", config.target_modules, modules, known);
  for (const std::string& parameter : config.target_parameters) {
    AdapterConfig one;
    one.target_parameters = {parameter};
    CheckMatch("lora_target_modules", parameter, experts, known,
               [&](const std::string& path) { return IsTargetModule(one, path); });
  }
  // lm_head never gets an adapter, but configurations of other trainers list it. Experts that are
  // parameters cannot be excluded (CheckExpertParameters).
  std::vector<std::string> excludable = modules;
  if (!config.target_parameters.empty()) {
    excludable.insert(excludable.end(), experts.begin(), experts.end());
  }
  excludable.push_back("lm_head");
  CheckSelection("exclude_modules", config.exclude_modules, excludable, names);

  std::vector<std::string> targeted;
  for (const auto* paths : {&modules, &experts}) {
    const bool may_be = paths == &modules || !config.target_parameters.empty();
    std::copy_if(paths->begin(), paths->end(), std::back_inserter(targeted),
                 [&](const std::string& path) { return may_be && IsTargetModule(config, path); });
  }
  if (targeted.empty()) {
    ThrowInvalidInput(
        "no linear is left to adapt: exclude_modules and layers_to_transform remove everything "
        "that lora_target_modules names");
  }
  std::vector<std::string> trained;
  for (const std::string& path : targeted) {
    trained.push_back(IsJoinedExpert(decoder, path)
                          ? std::string(JoinedExpertParameter(decoder, path))
                          : path.substr(path.rfind('.') + 1));
  }
  std::sort(trained.begin(), trained.end());
  trained.erase(std::unique(trained.begin(), trained.end()), trained.end());
  // A pattern matches a path if it is the pattern, and not the default 1, that gives the rank.
  const auto check_pattern = [&](const char* key, const std::string& pattern) {
    AdapterConfig one;
    one.r = 1;
    one.rank_pattern = {{pattern, 2}};
    one.target_parameters = config.target_parameters;
    CheckMatch(key, pattern, targeted, trained,
               [&](const std::string& path) { return RankOf(one, path) == 2; });
  };
  for (const auto& entry : config.rank_pattern) check_pattern("rank_pattern", entry.first);
  for (const auto& entry : config.alpha_pattern) check_pattern("alpha_pattern", entry.first);

  // adapter_config.json stores the patterns sorted, and the first match counts.
  std::vector<std::string> unknown_keys;
  const AdapterConfig stored =
      ParseAdapterConfig(FormatAdapterConfig(config), "the adapter's options", unknown_keys);
  for (const std::string& path : targeted) {
    if (RankOf(stored, path) == RankOf(config, path) &&
        AlphaOf(stored, path) == AlphaOf(config, path)) {
      continue;
    }
    ThrowInvalidInput(
        "several entries of rank_pattern or alpha_pattern match '{}', and in the sorted order of "
        "adapter_config.json they would mean another scale; write one pattern for each module",
        path);
  }
}

// The experts' parameters among the names of target_modules, which PEFT lists apart.
void SplitTargets(const DecoderConfig& decoder, AdapterConfig& config) {
  auto* names = std::get_if<std::vector<std::string>>(&config.target_modules);
  if (names == nullptr || !decoder.joins_experts()) return;
  const std::vector<std::string> parameters = ParameterNames(decoder);
  std::vector<std::string> modules;
  for (const std::string& name : *names) {
    const auto is_part = [&](const std::string& parameter) {
      return name == parameter || name.ends_with("." + parameter);
    };
    if (std::ranges::none_of(parameters, is_part)) {
      modules.push_back(name);
    } else if (name.find('.') == std::string::npos) {
      config.target_parameters.push_back(fmt::format("{}.{}", JoinedExpertsName(decoder), name));
    } else {
      config.target_parameters.push_back(name);
    }
  }
  *names = std::move(modules);
}

// PEFT applies neither option to parameters, so that an adapter that obeys them could not be
// loaded.
void CheckExpertParameters(const AdapterConfig& config, const DecoderConfig& decoder) {
  if (config.target_parameters.empty()) return;
  if (!config.layers_to_transform.empty()) {
    ThrowInvalidInput(
        "layers_to_transform does not choose among experts, which are parameters to PEFT; leave {} "
        "out of lora_target_modules, or give full paths there, as model.layers.1.{}.down_proj",
        fmt::join(config.target_parameters, " and "), JoinedExpertsName(decoder));
  }
  AdapterConfig all;
  all.target_modules = std::string("all-linear");
  all.module_prefix = config.module_prefix;
  all.exclude_modules = config.exclude_modules;
  // A name that modules have means those.
  if (auto* names = std::get_if<std::vector<std::string>>(&all.exclude_modules)) {
    const std::vector<std::string> modules = LinearNamesOf(decoder);
    std::erase_if(*names, [&](const std::string& name) {
      return std::ranges::find(modules, name) != modules.end();
    });
  }
  for (std::int64_t l = 0; l < decoder.num_hidden_layers; ++l) {
    LinearPaths(decoder, l).ForEach([&](const std::string& path) {
      if (!IsJoinedExpert(decoder, path) || IsTargetModule(all, path)) return;
      ThrowInvalidInput(
          "exclude_modules matches '{}', a part of experts that are parameters to PEFT; leave {} "
          "out of lora_target_modules instead",
          path, fmt::join(ParameterNames(decoder), " or "));
    });
  }
}

// A head that is trained without the embeddings is no longer tied to them; PEFT does so silently.
void CheckTied(const AdapterConfig& config, const DecoderConfig& decoder) {
  if (!decoder.tie_word_embeddings || config.modules_to_save.size() != 1) return;
  const bool head = config.modules_to_save.front() == "lm_head";
  ThrowInvalidInput(
      "modules_to_save: in this model lm_head and embed_tokens are one matrix "
      "(tie_word_embeddings); "
      "trained as {} alone, the {} would stay unchanged. Name both: then each is trained "
      "separately, "
      "and the merged model has two matrices",
      config.modules_to_save.front(), head ? "embedding" : "head");
}

// True where two configurations give every linear the same adapter.
bool AgreeOnLinears(const AdapterConfig& a, const AdapterConfig& b, const DecoderConfig& decoder) {
  bool agree = true;
  for (std::int64_t l = 0; l < decoder.num_hidden_layers; ++l) {
    LinearPaths(decoder, l).ForEach([&](const std::string& path) {
      agree = agree && IsTargetModule(a, path) == IsTargetModule(b, path) &&
              RankOf(a, path) == RankOf(b, path) && AlphaOf(a, path) == AlphaOf(b, path);
    });
  }
  return agree;
}

// The configuration of the adapter that training continues, with the paths of the model's class.
// Names of modules fit every class. Where paths or expressions, also those of patterns and
// exclusions, fit the adapter's own class alone, it keeps its paths.
AdapterConfig ConfigToContinue(const std::string& directory, const DecoderConfig& decoder) {
  const Adapter adapter = OpenAdapterFor(directory, decoder);
  CheckTrainable(adapter, directory, decoder.joins_experts());
  for (const AdapterModule& module : adapter.modules) {
    if (!IsReplaceable(decoder, module.path + ".weight")) continue;
    ThrowInvalidInput(
        "{}: the adapter has a LoRA on the router '{}', which is read but not trained further; "
        "merge it first (qlora export MODEL NEW --adapter {} --format hf)",
        directory, module.path, directory);
  }
  AdapterConfig config = adapter.config;
  config.module_prefix = decoder.module_prefix;
  config.embedding = decoder.names.embedding;
  return AgreeOnLinears(config, adapter.config, decoder) ? config : adapter.config;
}

}  // namespace

void CheckRank(const char* key, std::int64_t rank) {
  if (rank > kMostRank) ThrowInvalidInput("{} must be at most {}, found {}", key, kMostRank, rank);
}

AdapterConfig ToAdapterConfig(const TrainOptions& options, const DecoderConfig& decoder) {
  AdapterConfig config;
  config.base_model_name_or_path = BaseNameOf(options.model_name_or_path);
  config.r = options.lora_r;
  config.lora_alpha = options.lora_alpha;
  config.lora_dropout = options.lora_dropout;
  config.target_modules = ToSelection(options.lora_target_modules);
  if (config.target_modules == ModuleSelection("all-linear")) {
    config.target_modules = LinearNamesOf(decoder);
  }
  SplitTargets(decoder, config);
  if (!options.exclude_modules.empty()) {
    config.exclude_modules = ToSelection(options.exclude_modules);
  }
  config.layers_to_transform = ToLayers(options.layers_to_transform, decoder.num_hidden_layers);
  for (const auto& [pattern, value] : ToPatterns("rank_pattern", options.rank_pattern)) {
    config.rank_pattern.emplace_back(pattern, ToRank(value));
  }
  for (const auto& [pattern, value] : ToPatterns("alpha_pattern", options.alpha_pattern)) {
    config.alpha_pattern.emplace_back(pattern, value);
  }
  config.modules_to_save = options.modules_to_save;
  config.use_rslora = options.use_rslora;
  config.use_dora = options.use_dora;
  // Before the checks, which also test the ranks that will be stored.
  if (DoublesRank(ParseLoraInit(options.init_lora_weights))) DoubleRank(config);
  CheckNames(config, decoder);
  CheckTied(config, decoder);
  config.module_prefix = decoder.module_prefix;
  config.embedding = decoder.names.embedding;
  CheckExpertParameters(config, decoder);
  return config;
}

LoraAdapter DescribeAdapter(const TrainOptions& options, const DecoderConfig& decoder,
                            Memory& memory) {
  const bool continues = !options.adapter.empty();
  // Options that contradict an adapter on disk have been refused by ApplyAdapter.
  LoraAdapter adapter(
      continues ? ConfigToContinue(options.adapter, decoder) : ToAdapterConfig(options, decoder),
      decoder, memory);
  // Not a rule of options alone: the modules of an adapter that training continues are in its
  // folder.
  if (options.embedding_learning_rate > 0 && adapter.modules().empty()) {
    ThrowInvalidInput("embedding_learning_rate is that of modules_to_save, which names no module{}",
                      continues ? " in the adapter" : "");
  }
  if (DoublesRank(ParseLoraInit(options.init_lora_weights))) adapter.FreezeSecondHalf();
  return adapter;
}

std::string WarnOfRanks(const LoraAdapter& adapter) {
  const LoraLinear* widest = nullptr;
  for (const PerLinear<LoraLinear>& layer : adapter.layers()) {
    layer.ForEach([&](const LoraLinear& lora) {
      // The gate of a shared expert has one row, and costs nothing at any rank.
      if (lora.out == 1 || lora.trained_rank <= std::min(lora.in, lora.out)) return;
      if (widest == nullptr || lora.trained_rank > widest->trained_rank) widest = &lora;
    });
  }
  if (widest == nullptr) return "";
  // B A has at most the rank of the smaller side; the other parameters cost memory and time alone.
  return fmt::format(
      "the rank {} of the adapter exceeds the smaller side of the {} x {} weight of {}; a rank of "
      "at most {} can express as much",
      widest->trained_rank, widest->out, widest->in, widest->path,
      std::min(widest->in, widest->out));
}

std::string WarnOfUnevenExperts(const LoraAdapter& adapter) {
  const DecoderConfig& decoder = adapter.decoder();
  if (!HasUnevenExperts(adapter.config(), decoder)) return "";
  return fmt::format(
      "PEFT cannot load this adapter whole: {} and {} of all experts need one rank and scale "
      "there, "
      "and so does {}; this program reads all, and a merged model has all (export --format hf)",
      decoder.names.gate, decoder.names.up, decoder.names.down);
}

}  // namespace qlora
