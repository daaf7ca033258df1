#include "task/task_file.h"

#include <fmt/ranges.h>

#include <set>
#include <string_view>

#include "base/check.h"
#include "base/file.h"
#include "records/file_format.h"
#include "records/yaml_text.h"
#include "task/definition_keys.h"
#include "task/task_judging.h"

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
  DefinitionReader(const OrderedJson& json, const fs::path& path) : keys_(json, path) {
    task_.path = path;
  }

  TaskFile Read() {
    CheckFunctions();
    task_.name = keys_.TextOr("task", task_.path.stem().string());
    ReadKind();
    CheckKeys();
    ReadSplits();
    ReadShots();
    task_.description = keys_.TextOr("description", "");
    task_.target_delimiter = keys_.TextOr("target_delimiter", task_.target_delimiter);
    task_.fewshot_delimiter = keys_.TextOr("fewshot_delimiter", task_.fewshot_delimiter);
    task_.doc_to_text = keys_.Field("doc_to_text");
    task_.doc_to_target = keys_.Field("doc_to_target");
    task_.doc_to_choice = keys_.Field("doc_to_choice");
    ReadFunctions();
    ReadGeneration();
    ReadJudging(keys_, task_);
    if (keys_.Number("repeats", 1) != 1) {
      keys_.Refuse("repeats", "one answer of each record is measured");
    }
    return std::move(task_);
  }

 private:
  void CheckFunctions() const {
    for (const auto& [key, value] : keys_.json().items()) {
      const std::string function = FunctionOf(value);
      if (function.empty() || HoldsName(kIdleKeys, key) || key.starts_with("process_")) continue;
      keys_.Refuse(key, fmt::format("calls {}, a function of Python, which is not run; expected a "
                                    "Jinja text",
                                    function));
    }
  }

  void CheckKeys() {
    const bool decides = task_.kind == TaskKind::kDecision;
    OptionTable options;
    task_.decision.Declare(options);
    for (const auto& [key, value] : keys_.json().items()) {
      if (HoldsName(kIdleKeys, key) || HoldsName(decides ? kDecisionKeys : kKeys, key)) continue;
      if (!decides || options.Find(key) == nullptr) keys_.Refuse(key, "is not supported");
      SetOption(options, key, value);
    }
    std::string& text = task_.decision.decision_template;
    if (!text.empty() && text != "plain" && text != "chat") {
      text = (task_.path.parent_path() / text).string();
    }
  }

  void SetOption(OptionTable& options, const std::string& key, const OrderedJson& value) const {
    const std::string origin = fmt::format("{}: {}", keys_.where(), key);
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
    const std::string kind = keys_.TextOr("output_type", "generate_until");
    if (kind == "multiple_choice") {
      task_.kind = TaskKind::kMultipleChoice;
    } else if (kind == "loglikelihood_rolling") {
      task_.kind = TaskKind::kRolling;
    } else if (kind == "generate_until") {
      task_.kind = TaskKind::kGenerate;
    } else if (kind == "decision") {
      task_.kind = TaskKind::kDecision;
    } else {
      keys_.Refuse("output_type", fmt::format("expected multiple_choice, loglikelihood_rolling, "
                                              "generate_until or decision, found '{}'",
                                              kind));
    }
  }

  std::vector<fs::path> Paths(const OrderedJson& value) const {
    std::vector<fs::path> paths;
    for (const OrderedJson& name : value.is_array() ? value : OrderedJson::array({value})) {
      if (!name.is_string()) keys_.Refuse("dataset_kwargs.data_files", "expected names of files");
      paths.push_back(task_.path.parent_path() / name.get<std::string>());
    }
    return paths;
  }

  void ReadSplits() {
    task_.test_split = keys_.TextOr("test_split", keys_.TextOr("validation_split", ""));
    if (task_.test_split.empty()) keys_.Refuse("test_split", "the task names no split to measure");
    // Where the definition does not say, examples come from what is not measured, if anything is.
    task_.fewshot_split = keys_.TextOr(
        "fewshot_split",
        keys_.TextOr("training_split", keys_.TextOr("validation_split", task_.test_split)));
    const OrderedJson* kwargs = keys_.Find("dataset_kwargs");
    if (kwargs == nullptr || !kwargs->is_object() || !kwargs->contains("data_files")) return;
    const OrderedJson& files = (*kwargs)["data_files"];
    if (!files.is_object()) {
      task_.splits.push_back({task_.test_split, Paths(files)});
      return;
    }
    for (const auto& [split, names] : files.items()) task_.splits.push_back({split, Paths(names)});
  }

  void ReadShots() {
    task_.num_fewshot = keys_.Number("num_fewshot", 0);
    const OrderedJson* config = keys_.Find("fewshot_config");
    if (config == nullptr) return;
    for (const auto& [key, value] : config->items()) {
      if (key != "sampler") keys_.Refuse("fewshot_config." + key, "is not supported");
      if (value == "first_n") {
        task_.first_n = true;
      } else if (value != "default") {
        keys_.Refuse("fewshot_config.sampler", "expected default or first_n");
      }
    }
  }

  // Functions of Python are not run; those of HellaSwag and IFEval are known.
  void ReadFunctions() {
    task_.reads_hellaswag = IsFunctionOf("process_docs", "hellaswag");
    task_.checks_instructions = IsFunctionOf("process_results", "ifeval");
  }
  bool IsFunctionOf(std::string_view key, std::string_view task) const {
    const OrderedJson* value = keys_.Find(key);
    if (value == nullptr) return false;
    if (task_.name.starts_with(task)) return true;
    if (FunctionOf(*value).empty()) keys_.Refuse(key, "expected a function of Python");
    keys_.Refuse(key,
                 fmt::format("calls {}, a function of Python, which is not run; only that of {} is "
                             "known. Write the fields as Jinja texts",
                             FunctionOf(*value), task));
  }

  void ReadGeneration() {
    task_.until = {task_.fewshot_delimiter};
    const OrderedJson* kwargs = keys_.Find("generation_kwargs");
    if (kwargs == nullptr) return;
    for (const auto& [key, value] : kwargs->items()) {
      if (key == "until") {
        task_.until.clear();
        for (const OrderedJson& text : value.is_array() ? value : OrderedJson::array({value})) {
          if (!text.is_string()) keys_.Refuse("generation_kwargs.until", "expected texts");
          if (text != "") task_.until.push_back(text.get<std::string>());
        }
      } else if (key == "max_gen_toks") {
        if (!value.is_number_integer() || value < 1) {
          keys_.Refuse("generation_kwargs.max_gen_toks", "expected a whole number above 0");
        }
        task_.max_gen_toks = value.get<std::int64_t>();
      } else if (key == "do_sample" || key == "temperature") {
        if (value != false && value != 0) {
          keys_.Refuse("generation_kwargs." + key,
                       "the likeliest token is taken; nothing is drawn");
        }
      } else {
        keys_.Refuse("generation_kwargs." + key, "is not supported");
      }
    }
  }

  DefinitionKeys keys_;
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
