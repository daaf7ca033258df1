#include "plan/continued_adapter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "hub/hub_adapter.h"
#include "hub/hub_cache.h"
#include "io/peft/peft.h"
#include "model/base_record.h"
#include "model/checkpoint.h"
#include "plan/target_modules.h"

namespace qlora {
namespace {

// The entries of a selection as an option lists them; a regular expression is one entry.
std::vector<std::string> ItemsOf(const ModuleSelection& selection) {
  if (const auto* names = std::get_if<std::vector<std::string>>(&selection)) return *names;
  const std::string& regex = std::get<std::string>(selection);
  return regex.empty() ? std::vector<std::string>{} : std::vector<std::string>{regex};
}

// The entries of rank_pattern or alpha_pattern: "down_proj=8".
template <typename T>
std::vector<std::string> ItemsOf(const std::vector<std::pair<std::string, T>>& patterns) {
  std::vector<std::string> items;
  for (const auto& [pattern, value] : patterns)
    items.push_back(fmt::format("{}={}", pattern, value));
  return items;
}

// The modules, and behind them the parameters, of an adapter's targets.
std::vector<std::string> TargetsOf(const AdapterConfig& config) {
  std::vector<std::string> items = ItemsOf(config.target_modules);
  items.insert(items.end(), config.target_parameters.begin(), config.target_parameters.end());
  return items;
}

// Names of options, each with its value as a list. A scalar is a list of one.
using OptionValues = std::vector<std::pair<const char*, std::vector<std::string>>>;

// Adds the form of the base that the adapter was trained on.
void AddBaseRecord(const BaseRecord& base, OptionValues& values) {
  // The form of a GGUF file is the file's; on another base the options decide.
  if (!base.block_formats.empty()) return;
  const auto add = [&](const char* key, std::string value) {
    values.push_back({key, {std::move(value)}});
  };
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  add("load_in_4bit", flag(base.load_in_4bit));
  if (base.load_in_4bit) {
    const QuantizationFields& q = base.quantization;
    add("bnb_4bit_quant_type", q.bnb_4bit_quant_type);
    add("bnb_4bit_use_double_quant", flag(q.bnb_4bit_use_double_quant));
    add("bnb_4bit_blocksize", fmt::format("{}", q.bnb_4bit_blocksize));
    add("scale_search", flag(q.scale_search));
  }
}

// The options that an adapter on disk decides, with its values.
OptionValues ValuesOf(const AdapterConfig& c) {
  std::vector<std::string> layers;
  for (const std::int64_t layer : c.layers_to_transform) layers.push_back(fmt::format("{}", layer));
  return {{"lora_r", {fmt::format("{}", c.r)}},
          {"lora_alpha", {fmt::format("{}", c.lora_alpha)}},
          {"lora_dropout", {fmt::format("{}", c.lora_dropout)}},
          {"lora_target_modules", TargetsOf(c)},
          {"exclude_modules", ItemsOf(c.exclude_modules)},
          {"modules_to_save", c.modules_to_save},
          {"layers_to_transform", layers},
          {"rank_pattern", ItemsOf(c.rank_pattern)},
          {"alpha_pattern", ItemsOf(c.alpha_pattern)},
          {"use_rslora", {c.use_rslora ? "true" : "false"}},
          {"use_dora", {c.use_dora ? "true" : "false"}}};
}

// The order of module names and patterns does not matter when values are compared.
std::vector<std::string> Sorted(std::vector<std::string> items) {
  std::sort(items.begin(), items.end());
  return items;
}

// The value of an option in the spelling of ValuesOf: numbers in their shortest form, "all-linear"
// as the names of this model's linears, "4-7" as four layers. kMaxLayers bounds a range that no
// model of this program exceeds, because the configuration is not loaded here.
std::vector<std::string> ItemsOf(const Option& option, const TrainOptions& options) {
  const auto* list = std::get_if<std::vector<std::string>*>(&option.value);
  if (list == nullptr) {
    const auto* number = std::get_if<double*>(&option.value);
    return {number == nullptr ? option.ToString() : fmt::format("{}", **number)};
  }
  if (option.name == "lora_target_modules" &&
      ToSelection(**list) == ModuleSelection("all-linear")) {
    return LinearNamesOf(LoadDecoderConfig(ResolveModelDir(options.model_name_or_path)));
  }
  if (option.name == "layers_to_transform") {
    std::vector<std::string> layers;
    for (const std::int64_t layer : ToLayers(**list, kMaxLayers)) {
      layers.push_back(fmt::format("{}", layer));
    }
    return layers;
  }
  return **list;
}

}  // namespace

void ApplyAdapter(const TrainOptions& options, OptionTable& table) {
  if (options.adapter.empty()) return;
  const std::string adapter = ResolveAdapterDir(options.adapter);
  const std::optional<BaseRecord> base = LoadBaseRecord(adapter);
  // These two may differ from the adapter's: a value that is set wins, where the others below are
  // refused.
  const auto take = [&](const char* key, const std::string& value) {
    if (!table.Find(key)->set) table.Set(key, value, options.adapter);
  };
  if (base) {
    take("chat_template_kwargs", base->prompts.chat_template_kwargs);
    take("chat_template_date", base->prompts.chat_template_date);
  }
  OptionValues values = ValuesOf(OpenAdapter(adapter).config);
  if (base) AddBaseRecord(*base, values);
  for (const auto& [key, items] : values) {
    Option& option = *table.Find(key);
    if (!option.set) {
      const bool is_list = std::holds_alternative<std::vector<std::string>*>(option.value);
      is_list ? table.Set(key, items, options.adapter)
              : table.Set(key, items.front(), options.adapter);
      continue;
    }
    const std::vector<std::string> given = ItemsOf(option, options);
    if (Sorted(given) == Sorted(items)) continue;
    ThrowInvalidInput(
        "{} is '{}', but {} was made with '{}', which continued training keeps; leave {} out", key,
        fmt::join(given, ","), options.adapter, fmt::join(items, ","), key);
  }
}

// The table of the copy takes the place of a command line: an option counts as set when its
// text differs from the text of the default.
TrainOptions WithAdapter(const TrainOptions& options) {
  TrainOptions given = options;
  OptionTable table;
  given.Declare(table);
  TrainOptions defaults;
  OptionTable default_table;
  defaults.Declare(default_table);
  for (const Option& option : default_table.options()) {
    Option& mine = *table.Find(option.name);
    mine.set = mine.ToString() != option.ToString();
  }
  given.adapter = ResolveAdapterDir(given.adapter);
  ApplyAdapter(given, table);
  return given;
}

}  // namespace qlora
