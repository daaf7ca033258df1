// The gate against forgetting: tasks of which an adapter may lose no more than a suite allows.
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "io/json.h"
#include "qlora/tasks.h"
#include "records/yaml_text.h"
#include "task/prepared_task.h"

namespace qlora {
namespace {

constexpr std::size_t kMostExamples = 3;

std::int64_t WholeNumber(const OrderedJson& value, const std::string& where,
                         const std::string& key) {
  if (!value.is_number_integer() || value.get<std::int64_t>() < 0) {
    ThrowInvalidInput("{}: {}: expected a whole number", where, key);
  }
  return value.get<std::int64_t>();
}

GateTask ReadTask(const OrderedJson& json, const std::filesystem::path& suite) {
  const std::string where = suite.string() + ": tasks";
  if (!json.is_object()) ThrowInvalidInput("{}: expected 'task: FILE' and its limits", where);
  GateTask task;
  for (const auto& [key, value] : json.items()) {
    const bool is_text = key == "task" || key == "figure";
    if (is_text ? !value.is_string() : !value.is_number()) {
      ThrowInvalidInput("{}: {}: expected a {}", where, key, is_text ? "text" : "number");
    }
    if (key == "task") {
      task.path = FindTaskFile(suite.parent_path(), value.get<std::string>()).string();
    } else if (key == "figure") {
      task.figure = value.get<std::string>();
    } else if (key == "max_loss") {
      task.max_loss = value.get<double>();
    } else if (key == "p") {
      task.p = value.get<double>();
    } else if (key == "num_fewshot") {
      task.options.num_fewshot = WholeNumber(value, where, key);
    } else if (key == "limit") {
      task.options.limit = WholeNumber(value, where, key);
    } else {
      ThrowInvalidInput("{}: {}: expected task, figure, max_loss, p, num_fewshot or limit", where,
                        key);
    }
  }
  if (task.path.empty()) ThrowInvalidInput("{}: task: the name of a definition is missing", where);
  if (!(task.max_loss >= 0)) ThrowInvalidInput("{}: max_loss: expected 0 or more", where);
  if (!(task.p > 0 && task.p <= 1)) ThrowInvalidInput("{}: p: expected a share, 0 to 1", where);
  return task;
}

std::size_t IndexOf(const TaskResult& result, const std::string& name) {
  const auto found = std::find_if(result.figures.begin(), result.figures.end(),
                                  [&](const TaskFigure& figure) { return figure.name == name; });
  if (found == result.figures.end()) {
    ThrowInvalidInput("gate: task {} has no figure '{}'", result.task, name);
  }
  return found - result.figures.begin();
}

// The records on which the adapter is worst beside the base, the worst first. An error of bins is
// that of no record.
std::vector<std::int64_t> LargestLosses(const TaskFigure& before, const TaskFigure& after) {
  std::vector<std::pair<double, std::int64_t>> losses;  // of those that lost, below 0
  if (before.numerators.size() != before.denominators.size()) return {};
  for (std::size_t i = 0; i < before.numerators.size(); ++i) {
    const double gain = after.numerators[i] - before.numerators[i];
    const double loss = before.higher_is_better ? gain : -gain;
    if (loss < 0) losses.emplace_back(loss, static_cast<std::int64_t>(i));
  }
  std::sort(losses.begin(), losses.end());
  if (losses.size() > kMostExamples) losses.resize(kMostExamples);
  std::vector<std::int64_t> records;
  for (const auto& [loss, record] : losses) records.push_back(record);
  return records;
}

}  // namespace

GateSuite ReadGateSuite(const std::string& path) {
  const OrderedJson json = ParseOrderedJson(JsonText(ParseYaml(ReadTextFile(path), path)), path);
  if (!json.is_object() || json.size() != 1 || !json.contains("tasks") ||
      !json["tasks"].is_array() || json["tasks"].empty()) {
    ThrowInvalidInput("{}: expected a list 'tasks' and nothing else", path);
  }
  GateSuite suite{.path = path, .tasks = {}};
  for (const OrderedJson& one : json["tasks"]) {
    GateTask task = ReadTask(one, path);
    // Wrong data are named now, not when the run has ended.
    const std::vector<std::string> figures = FigureNames(PrepareTask(task.path, task.options).file);
    if (task.figure.empty()) task.figure = figures.front();
    if (std::find(figures.begin(), figures.end(), task.figure) == figures.end()) {
      ThrowInvalidInput("{}: figure: {} has {}, found '{}'", path, task.path,
                        fmt::join(figures, ", "), task.figure);
    }
    suite.tasks.push_back(std::move(task));
  }
  return suite;
}

std::vector<TaskResult> MeasureGate(Model& model, const GateSuite& suite,
                                    const TaskProgress& progress) {
  std::vector<TaskResult> results;
  for (const GateTask& task : suite.tasks) {
    results.push_back(EvaluateTask(model, task.path, task.options, progress));
  }
  return results;
}

std::vector<GateVerdict> JudgeGate(const GateSuite& suite, const std::vector<TaskResult>& base,
                                   const std::vector<TaskResult>& adapter) {
  std::vector<GateVerdict> verdicts;
  for (std::size_t t = 0; t < suite.tasks.size(); ++t) {
    const GateTask& task = suite.tasks[t];
    const std::size_t index = IndexOf(base[t], task.figure);
    const double sign = base[t].figures[index].higher_is_better ? -1 : 1;
    GateVerdict& verdict = verdicts.emplace_back();
    verdict.task = base[t].task;
    verdict.max_loss = task.max_loss;
    verdict.figure = CompareTasks(base[t], adapter[t])[index];
    const double loss = verdict.figure.difference * sign;
    // Each comparison is false of NaN, so that a figure that is no number is lost.
    verdict.lost = !(loss <= task.max_loss) && !(verdict.figure.p > task.p);
    verdict.by_chance = loss > task.max_loss && !verdict.lost;
    for (const std::int64_t i : LargestLosses(base[t].figures[index], adapter[t].figures[index])) {
      verdict.examples.push_back(adapter[t].samples[i]);
    }
  }
  return verdicts;
}

}  // namespace qlora
