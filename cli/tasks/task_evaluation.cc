#include "tasks/task_evaluation.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "command/model_loading.h"
#include "terminal/terminal.h"

namespace qlora {

void TaskEvaluation::Declare(OptionTable& table) {
  options_.Declare(table);
  table.AddPath("samples", &samples_.path, "file for what each record gave, a line of JSON each");
}

ModelTasks TaskEvaluation::Measure(Context& context, ModelOptions model, const std::string& name,
                                   const Console& console) const {
  const bool is_base = name == "base";
  if (is_base) {
    model.adapter.clear();
  } else if (!name.empty()) {
    model.adapter = {name};
  }
  Model loaded = LoadModel(context, model, console);
  ModelTasks measured{name, {}};
  for (const std::string& path : options_.task) {
    StatusLine line(console.err, console.style);
    measured.results.push_back(
        EvaluateTask(loaded, path, options_, [&](std::int64_t done, std::int64_t total) {
          ShowProgress(line, "evaluating", done, total);
        }));
    if (const std::string& note = measured.results.back().note; !note.empty()) {
      Say(console, "note: " + note);
    }
  }
  return measured;
}

OrderedJson TaskEvaluation::ToJson(const std::vector<ModelTasks>& models) const {
  const auto figures = [](const ModelTasks& model) {
    OrderedJson json = OrderedJson::object();
    for (const TaskResult& result : model.results) json[result.task] = FiguresJson(result);
    return json;
  };
  OrderedJson json = {{"results", figures(models.back())},
                      {"fewshot_seed", options_.fewshot_seed},
                      {"add_bos_token", options_.add_bos_token}};
  for (const TaskResult& result : models.back().results) {
    json["num_fewshot"][result.task] = result.num_fewshot;
  }
  if (models.size() == 1) return json;
  json["results"] = OrderedJson::object();
  for (const ModelTasks& model : models) json["results"][model.name] = figures(model);
  for (std::size_t m = 0; m + 1 < models.size(); ++m) {
    for (std::size_t t = 0; t < models[m].results.size(); ++t) {
      OrderedJson rows = OrderedJson::array();
      for (const TaskComparison& row :
           CompareTasks(models.back().results[t], models[m].results[t])) {
        rows.push_back(ComparisonJson(row));
      }
      json["compared"][models[m].name][models[m].results[t].task] = std::move(rows);
    }
  }
  return json;
}

int TaskEvaluation::Run(Context& context, const ModelOptions& model,
                        const std::vector<std::string>& compared, bool overwrite, bool json,
                        const Console& console) {
  samples_.overwrite = overwrite;
  samples_.Check();
  std::vector<std::string> names = compared;
  // --compare alone: the adapter beside the base.
  if (names.size() == 1 && !model.adapter.empty()) {
    names.insert(names.begin(), model.adapter.front());
  }
  if (names.empty()) names = {""};
  std::vector<ModelTasks> models;
  for (const std::string& name : names) models.push_back(Measure(context, model, name, console));
  if (!samples_.path.empty()) {
    std::string lines;
    for (const ModelTasks& one : models) {
      for (const TaskResult& result : one.results) {
        for (const std::string& sample : result.samples) lines += sample + "\n";
      }
    }
    samples_.Write(console, lines);
  }
  if (json) {
    PrintJson(console.out, ToJson(models));
  } else {
    console.out << (models.size() == 1 ? TaskTable(models.front().results)
                                       : TaskComparisonTable(models));
  }
  return 0;
}

}  // namespace qlora
