#include "task/task_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <set>
#include <string_view>

#include "base/check.h"
#include "base/file.h"
#include "io/pattern.h"
#include "records/file_format.h"
#include "records/yaml_text.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// Keys that change nothing here: names for people, and rules for data that are not measured.
constexpr std::string_view kIdleKeys =
    " dataset_path dataset_name training_split metadata tag group task_alias should_decontaminate "
    "doc_to_decontamination_query fewshot_as_multiturn version ";
constexpr std::string_view kKeys =
    " task include dataset_kwargs test_split validation_split fewshot_split num_fewshot "
    "fewshot_config description target_delimiter fewshot_delimiter doc_to_text doc_to_target "
    "doc_to_choice process_docs process_results generation_kwargs filter_list metric_list "
    "output_type repeats ";
// Of decisions, beside the options of data of the same names.
constexpr std::string_view kDecisionKeys =
    " task dataset_kwargs test_split validation_split metric_list output_type ";
constexpr std::string_view kFilterKeys = " name filter ";
constexpr std::string_view kStepKeys = " function regex_pattern group_select fallback ";
constexpr std::string_view kMetricKeys = " metric aggregation higher_is_better ";
constexpr std::string_view kMatchKeys =
    " regexes_to_ignore ignore_case ignore_punctuation ignore_numbers ";

// What lm-evaluation-harness calls the figure of all records.
struct KnownMetric {
  std::string_view name;
  TaskKind kind;
  std::string_view aggregation = "mean";
  bool of_instructions = false;  // of IFEval's answers alone
  bool higher_is_better = true;
};
constexpr KnownMetric kMetrics[] = {
    {"acc", TaskKind::kMultipleChoice},
    {"acc_norm", TaskKind::kMultipleChoice},
    {"exact_match", TaskKind::kGenerate},
    {"f1", TaskKind::kGenerate},
    {"word_perplexity", TaskKind::kRolling, "weighted_perplexity", false, false},
    {"byte_perplexity", TaskKind::kRolling, "weighted_perplexity", false, false},
    {"bits_per_byte", TaskKind::kRolling, "bits_per_byte", false, false},
    {"accuracy", TaskKind::kDecision},
    {"log_loss", TaskKind::kDecision, "mean", false, false},
    {"brier", TaskKind::kDecision, "mean", false, false},
    {"ece", TaskKind::kDecision, "ece", false, false},
    {"prompt_level_strict_acc", TaskKind::kGenerate, "mean", true},
    {"inst_level_strict_acc", TaskKind::kGenerate, "agg_inst_level_acc", true},
    {"prompt_level_loose_acc", TaskKind::kGenerate, "mean", true},
    {"inst_level_loose_acc", TaskKind::kGenerate, "agg_inst_level_acc", true},
};

const KnownMetric* FindMetric(std::string_view name) {
  const auto* found = std::find_if(std::begin(kMetrics), std::end(kMetrics),
                                   [&](const KnownMetric& known) { return known.name == name; });
  return found == std::end(kMetrics) ? nullptr : found;
}

// Those of a definition that names none: the defaults of lm-evaluation-harness, and of decisions
// all.
std::vector<TaskMetric> UsualMetrics(TaskKind kind) {
  std::vector<TaskMetric> metrics;
  for (const KnownMetric& known : kMetrics) {
    if (known.kind != kind || known.of_instructions || known.name == "f1") continue;
    TaskMetric& metric = metrics.emplace_back();
    metric.name = known.name;
    metric.higher_is_better = known.higher_is_better;
  }
  return metrics;
}

bool Holds(std::string_view names, std::string_view name) {
  return names.find(fmt::format(" {} ", name)) != std::string_view::npos;
}

// The function of Python that a value calls: "utils.process_docs"; "" where it calls none.
std::string FunctionOf(const OrderedJson& value) {
  return value.is_object() ? value.value("!function", "") : "";
}

// The definition with those that it includes, whose keys it replaces.
OrderedJson ReadDefinition(const fs::path& path, int depth = 0) {
  constexpr int kMostIncludes = 8;
  const std::string where = path.string();
  if (depth > kMostIncludes) ThrowInvalidInput("{}: definitions include one another", where);
  OrderedJson json = ParseOrderedJson(JsonText(ParseYaml(ReadTextFile(path), where)), where);
  if (!json.is_object()) ThrowInvalidInput("{}: expected a task: lines of 'key: value'", where);
  if (!json.contains("include")) return json;
  const OrderedJson included = json["include"];
  json.erase("include");
  OrderedJson merged = OrderedJson::object();
  for (const OrderedJson& name : included.is_array() ? included : OrderedJson{included}) {
    if (!name.is_string()) ThrowInvalidInput("{}: include: expected the name of a file", where);
    merged.update(ReadDefinition(path.parent_path() / name.get<std::string>(), depth + 1));
  }
  merged.update(json);
  return merged;
}

// Reads the keys of one definition.
class DefinitionReader {
 public:
  DefinitionReader(const OrderedJson& json, const fs::path& path)
      : json_(json), where_(path.string()) {
    task_.path = path;
  }

  TaskFile Read() {
    CheckFunctions();
    task_.name = TextOr("task", task_.path.stem().string());
    ReadKind();
    CheckKeys();
    ReadSplits();
    ReadShots();
    task_.description = TextOr("description", "");
    task_.target_delimiter = TextOr("target_delimiter", task_.target_delimiter);
    task_.fewshot_delimiter = TextOr("fewshot_delimiter", task_.fewshot_delimiter);
    task_.doc_to_text = Field("doc_to_text");
    task_.doc_to_target = Field("doc_to_target");
    task_.doc_to_choice = Field("doc_to_choice");
    ReadFunctions();
    ReadGeneration();
    ReadFilters();
    ReadMetrics();
    if (Number("repeats", 1) != 1) Refuse("repeats", "one answer of each record is measured");
    return std::move(task_);
  }

 private:
  [[noreturn]] void Refuse(std::string_view key, std::string_view reason) const {
    ThrowInvalidInput("{}: {}: {}", where_, key, reason);
  }

  const OrderedJson* Find(std::string_view key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  std::string TextOr(std::string_view key, std::string otherwise) const {
    const OrderedJson* value = Find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) Refuse(key, "expected a text");
    return value->get<std::string>();
  }

  std::int64_t Number(std::string_view key, std::int64_t otherwise) const {
    const OrderedJson* value = Find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_number_integer() || value->get<std::int64_t>() < 0) {
      Refuse(key, "expected a whole number");
    }
    return value->get<std::int64_t>();
  }

  void CheckFunctions() const {
    for (const auto& [key, value] : json_.items()) {
      const std::string function = FunctionOf(value);
      if (function.empty() || Holds(kIdleKeys, key) || key.starts_with("process_")) continue;
      Refuse(key, fmt::format("calls {}, a function of Python, which is not run; expected a "
                              "Jinja text",
                              function));
    }
  }

  void CheckKeys() {
    const bool decides = task_.kind == TaskKind::kDecision;
    OptionTable options;
    task_.decision.Declare(options);
    for (const auto& [key, value] : json_.items()) {
      if (Holds(kIdleKeys, key) || Holds(decides ? kDecisionKeys : kKeys, key)) continue;
      if (!decides || options.Find(key) == nullptr) Refuse(key, "is not supported");
      SetOption(options, key, value);
    }
    std::string& text = task_.decision.decision_template;
    if (!text.empty() && text != "plain" && text != "chat") {
      text = (task_.path.parent_path() / text).string();
    }
  }

  void SetOption(OptionTable& options, const std::string& key, const OrderedJson& value) const {
    const std::string origin = fmt::format("{}: {}", where_, key);
    if (!value.is_array()) {
      options.Set(key, value.is_string() ? value.get<std::string>() : FormatJson(value), origin);
      return;
    }
    std::vector<std::string> items;
    for (const OrderedJson& item : value) {
      items.push_back(item.is_string() ? item.get<std::string>() : FormatJson(item));
    }
    options.Set(key, items, origin);
  }

  void ReadKind() {
    const std::string kind = TextOr("output_type", "generate_until");
    if (kind == "multiple_choice") {
      task_.kind = TaskKind::kMultipleChoice;
    } else if (kind == "loglikelihood_rolling") {
      task_.kind = TaskKind::kRolling;
    } else if (kind == "generate_until") {
      task_.kind = TaskKind::kGenerate;
    } else if (kind == "decision") {
      task_.kind = TaskKind::kDecision;
    } else {
      Refuse("output_type", fmt::format("expected multiple_choice, loglikelihood_rolling, "
                                        "generate_until or decision, found '{}'",
                                        kind));
    }
  }

  std::vector<fs::path> Paths(const OrderedJson& value) const {
    std::vector<fs::path> paths;
    for (const OrderedJson& name : value.is_array() ? value : OrderedJson::array({value})) {
      if (!name.is_string()) Refuse("dataset_kwargs.data_files", "expected names of files");
      paths.push_back(task_.path.parent_path() / name.get<std::string>());
    }
    return paths;
  }

  void ReadSplits() {
    task_.test_split = TextOr("test_split", TextOr("validation_split", ""));
    if (task_.test_split.empty()) Refuse("test_split", "the task names no split to measure");
    // Where the definition does not say, examples come from what is not measured, if anything is.
    task_.fewshot_split = TextOr(
        "fewshot_split", TextOr("training_split", TextOr("validation_split", task_.test_split)));
    const OrderedJson* kwargs = Find("dataset_kwargs");
    if (kwargs == nullptr || !kwargs->is_object() || !kwargs->contains("data_files")) return;
    const OrderedJson& files = (*kwargs)["data_files"];
    if (!files.is_object()) {
      task_.splits.push_back({task_.test_split, Paths(files)});
      return;
    }
    for (const auto& [split, names] : files.items()) task_.splits.push_back({split, Paths(names)});
  }

  void ReadShots() {
    task_.num_fewshot = Number("num_fewshot", 0);
    const OrderedJson* config = Find("fewshot_config");
    if (config == nullptr) return;
    for (const auto& [key, value] : config->items()) {
      if (key != "sampler") Refuse("fewshot_config." + key, "is not supported");
      if (value == "first_n") {
        task_.first_n = true;
      } else if (value != "default") {
        Refuse("fewshot_config.sampler", "expected default or first_n");
      }
    }
  }

  OrderedJson Field(std::string_view key) const {
    const OrderedJson* value = Find(key);
    return value == nullptr ? OrderedJson(nullptr) : *value;
  }

  // Functions of Python are not run; those of HellaSwag and IFEval are known.
  void ReadFunctions() {
    task_.reads_hellaswag = IsFunctionOf("process_docs", "hellaswag");
    task_.checks_instructions = IsFunctionOf("process_results", "ifeval");
  }
  bool IsFunctionOf(std::string_view key, std::string_view task) const {
    const OrderedJson* value = Find(key);
    if (value == nullptr) return false;
    if (task_.name.starts_with(task)) return true;
    if (FunctionOf(*value).empty()) Refuse(key, "expected a function of Python");
    Refuse(key, fmt::format("calls {}, a function of Python, which is not run; only that of {} is "
                            "known. Write the fields as Jinja texts",
                            FunctionOf(*value), task));
  }

  void ReadGeneration() {
    task_.until = {task_.fewshot_delimiter};
    const OrderedJson* kwargs = Find("generation_kwargs");
    if (kwargs == nullptr) return;
    for (const auto& [key, value] : kwargs->items()) {
      if (key == "until") {
        task_.until.clear();
        for (const OrderedJson& text : value.is_array() ? value : OrderedJson::array({value})) {
          if (!text.is_string()) Refuse("generation_kwargs.until", "expected texts");
          if (text != "") task_.until.push_back(text.get<std::string>());
        }
      } else if (key == "max_gen_toks") {
        if (!value.is_number_integer() || value < 1) {
          Refuse("generation_kwargs.max_gen_toks", "expected a whole number above 0");
        }
        task_.max_gen_toks = value.get<std::int64_t>();
      } else if (key == "do_sample" || key == "temperature") {
        if (value != false && value != 0) {
          Refuse("generation_kwargs." + key, "the likeliest token is taken; nothing is drawn");
        }
      } else {
        Refuse("generation_kwargs." + key, "is not supported");
      }
    }
  }

  // Refuses a value that is no object, and a key of it that is none of these.
  void CheckObject(std::string_view key, const OrderedJson& json,
                   std::initializer_list<std::string_view> known) const {
    if (!json.is_object()) Refuse(key, "expected 'key: value'");
    for (const auto& item : json.items()) {
      const bool holds = std::any_of(known.begin(), known.end(), [&](std::string_view names) {
        return Holds(names, item.key());
      });
      if (!holds) Refuse(key, fmt::format("the key '{}' is not supported", item.key()));
    }
  }

  // An empty text is matched to have a malformed pattern refused.
  void CheckPattern(std::string_view key, const std::string& pattern) const {
    FindAll(pattern, "", fmt::format("{}: {}", where_, key));
  }

  FilterStep Step(const OrderedJson& json) const {
    CheckObject("filter_list", json, {kStepKeys});
    FilterStep step;
    const std::string function = json.value("function", "");
    if (function == "regex") {
      step.kind = FilterStep::kRegex;
      step.pattern = json.value("regex_pattern", R"(#### (\-?[0-9\.\,]+))");
      step.group_select = json.value("group_select", std::int64_t{0});
      step.fallback = json.value("fallback", step.fallback);
      CheckPattern("filter_list", step.pattern);
      return step;
    }
    if (function == "remove_whitespace") {
      step.kind = FilterStep::kRemoveWhitespace;
    } else if (function == "lowercase") {
      step.kind = FilterStep::kLowercase;
    } else if (function != "take_first") {
      Refuse("filter_list", fmt::format("the filter '{}' is not supported", function));
    }
    if (json.size() > 1) Refuse("filter_list", fmt::format("{} has no settings", function));
    return step;
  }

  void ReadFilters() {
    if (const OrderedJson* filters = Find("filter_list")) {
      if (task_.kind != TaskKind::kGenerate) {
        Refuse("filter_list", "filters are for answers that are generated");
      }
      if (!filters->is_array()) Refuse("filter_list", "expected a list");
      for (const OrderedJson& json : *filters) ReadFilter(json);
    }
    if (task_.filters.empty()) task_.filters.push_back({"none", {}});
  }

  void ReadFilter(const OrderedJson& json) {
    CheckObject("filter_list", json, {kFilterKeys});
    TaskFilter filter;
    filter.name = json.value("name", "none");
    for (const TaskFilter& other : task_.filters) {
      if (other.name == filter.name) {
        Refuse("filter_list", fmt::format("two filters are named '{}'", filter.name));
      }
    }
    for (const OrderedJson& step : json.value("filter", OrderedJson::array())) {
      filter.steps.push_back(Step(step));
    }
    task_.filters.push_back(std::move(filter));
  }

  void ReadMetrics() {
    const OrderedJson* metrics = Find("metric_list");
    if (metrics == nullptr && !task_.checks_instructions) {
      task_.metrics = UsualMetrics(task_.kind);
      return;
    }
    if (metrics == nullptr || !metrics->is_array() || metrics->empty()) {
      Refuse("metric_list", "expected a list with 'metric: NAME' for each metric");
    }
    for (const OrderedJson& json : *metrics) ReadMetric(json);
  }

  void ReadMetric(const OrderedJson& json) {
    if (!json.is_object() || !json.contains("metric")) {
      Refuse("metric_list", "expected 'metric: NAME'");
    }
    if (!json["metric"].is_string()) {
      Refuse("metric_list", fmt::format("metric: expected a name, found {}; a function of Python "
                                        "is not run",
                                        FormatJson(json["metric"])));
    }
    TaskMetric metric;
    metric.name = json["metric"].get<std::string>();
    const KnownMetric* known = FindMetric(metric.name);
    if (known == nullptr) {
      Refuse("metric_list", fmt::format("the metric '{}' is not supported", metric.name));
    }
    if (known->kind != task_.kind || known->of_instructions != task_.checks_instructions) {
      Refuse("metric_list", fmt::format("{} is no metric of this output_type", metric.name));
    }
    for (const TaskMetric& other : task_.metrics) {
      if (other.name == metric.name) {
        Refuse("metric_list", fmt::format("{} is given twice", metric.name));
      }
    }
    const bool matches = metric.name == "exact_match";
    CheckObject("metric_list", json, {kMetricKeys, matches ? kMatchKeys : kMetricKeys});
    metric.higher_is_better = known->higher_is_better;
    CheckAggregation(json, *known, metric);
    metric.regexes_to_ignore = json.value("regexes_to_ignore", std::vector<std::string>());
    for (const std::string& pattern : metric.regexes_to_ignore) {
      CheckPattern("metric_list", pattern);
    }
    metric.ignore_case = json.value("ignore_case", false);
    metric.ignore_punctuation = json.value("ignore_punctuation", false);
    metric.ignore_numbers = json.value("ignore_numbers", false);
    task_.metrics.push_back(std::move(metric));
  }

  // The definition may say how records are put together, but not otherwise than it is done.
  void CheckAggregation(const OrderedJson& json, const KnownMetric& known,
                        const TaskMetric& metric) const {
    if (const auto found = json.find("aggregation"); found != json.end()) {
      std::string given = FunctionOf(*found);
      given = given.substr(given.rfind('.') + 1);
      if (given.empty())
        given = found->is_string() ? found->get<std::string>() : FormatJson(*found);
      if (given != known.aggregation) {
        Refuse("metric_list", fmt::format("aggregation: {} is put together by '{}', found '{}'",
                                          metric.name, known.aggregation, given));
      }
    }
    if (json.value("higher_is_better", metric.higher_is_better) != metric.higher_is_better) {
      Refuse("metric_list",
             fmt::format("higher_is_better: of {} it is {}", metric.name, metric.higher_is_better));
    }
  }

  const OrderedJson& json_;
  std::string where_;
  TaskFile task_;
};

// "eval.jsonl.gz" is the task "eval".
TaskFile TaskOfData(const fs::path& path) {
  TaskFile task;
  task.path = path;
  const fs::path stem = path.stem();
  task.name = (HasDataExtension(stem) ? stem.stem() : stem).string();
  task.kind = TaskKind::kDecision;
  task.splits = {{"test", {path}}};
  task.test_split = "test";
  task.filters = {{"none", {}}};
  task.metrics = UsualMetrics(task.kind);
  return task;
}

}  // namespace

fs::path FindTaskFile(const fs::path& folder, const std::string& name) {
  const fs::path file = folder / name;
  const fs::path installed = ProgramFolder().parent_path() / "share/qlora/tasks";
  const bool may_be_name = name.find_first_of("./") == name.npos;
  const bool is_there = Exists(file) && !fs::is_directory(file);
  if (!may_be_name || is_there || !Exists(installed)) return file;
  if (Exists(installed / (name + ".yaml"))) return installed / (name + ".yaml");
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(installed)) {
    if (entry.path().extension() == ".yaml") names.insert(entry.path().stem().string());
  }
  ThrowInvalidInput("task: '{}' is no file, and not among the definitions of {}: {}", name,
                    installed.string(), fmt::join(names, ", "));
}

TaskFile ReadTaskFile(const fs::path& path) {
  if (HasDataExtension(path)) return TaskOfData(path);
  const OrderedJson json = ReadDefinition(path);
  try {
    return DefinitionReader(json, path).Read();
  } catch (const OrderedJson::type_error&) {
    ThrowInvalidInput("{}: a key of filter_list or metric_list has a value of another type",
                      path.string());
  }
}

std::vector<std::string> FigureNames(const TaskFile& task) {
  std::vector<std::string> names;
  for (const TaskFilter& filter : task.filters) {
    for (const TaskMetric& metric : task.metrics) {
      names.push_back(task.filters.size() == 1 ? metric.name : metric.name + "," + filter.name);
    }
  }
  return names;
}

const TaskSplit& SplitNamed(const TaskFile& task, const std::string& name) {
  for (const TaskSplit& split : task.splits) {
    if (split.name != name) continue;
    for (const fs::path& file : split.files) {
      if (Exists(file)) continue;
      ThrowInvalidInput(
          "{}: the split '{}' is read from {}, which is not there; give its file with --task_data "
          "{}=FILE (qlora pull --dataset ORG/NAME downloads published ones)",
          task.path.string(), name, file.string(), name);
    }
    return split;
  }
  ThrowInvalidInput(
      "{}: no file is named for the split '{}'; give it with --task_data {}=FILE, or as "
      "dataset_kwargs.data_files.{} in the definition",
      task.path.string(), name, name, name);
}

}  // namespace qlora
