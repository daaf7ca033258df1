#include "tasks/task_evaluation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "command/model_loading.h"
#include "terminal/terminal.h"

namespace qlora {

std::vector<ComparedModel> ModelsOf(const std::vector<std::string>& adapter,
                                    const std::vector<std::string>& compared) {
  std::vector<ComparedModel> models;
  // Several adapters of --adapter are one model, their sum.
  const std::string sum = fmt::format("{}", fmt::join(adapter, " + "));
  if (compared.empty()) return {{"", adapter}};
  if (!adapter.empty()) models.push_back({sum, adapter});
  if (!adapter.empty() && compared.size() > 1) {
    ThrowInvalidInput(
        "compare: {} stands beside one other model; name all models behind --compare, or one", sum);
  }
  for (const std::string& name : compared) {
    ComparedModel model{name, {}};
    if (name != "base") model.adapter = {name};
    for (const ComparedModel& other : models) {
      if (other.adapter == model.adapter) {
        ThrowInvalidInput("compare: '{}' is named twice", name);
      }
    }
    models.push_back(std::move(model));
  }
  if (models.size() == 1) {
    ThrowInvalidInput("compare: '{}' stands beside nothing; name another model, or --adapter",
                      models.front().name);
  }
  return models;
}

void TaskEvaluation::Declare(OptionTable& table) {
  options_.Declare(table);
  table.AddPath("samples", &samples_.path, "file for what each record gave, a line of JSON each");
}

ModelTasks TaskEvaluation::Measure(Model& model, const std::string& name,
                                   const Console& console) const {
  ModelTasks measured{name, {}};
  for (const std::string& path : options_.task) {
    StatusLine line(console.err, console.style);
    measured.results.push_back(
        EvaluateTask(model, path, options_, [&](std::int64_t done, std::int64_t total) {
          ShowProgress(line, "evaluating", done, total);
        }));
    if (const std::string& note = measured.results.back().note; !note.empty()) {
      Say(console, "note: " + note);
    }
  }
  return measured;
}

// The base comes last, whatever its place: it is held in the form that an adapter was trained on.
std::vector<ModelTasks> TaskEvaluation::MeasureAll(Context& context, ModelOptions options,
                                                   const std::vector<ComparedModel>& models,
                                                   const Console& console) const {
  std::vector<ModelTasks> all(models.size());
  std::optional<ModelOptions> base;
  for (std::size_t m = 0; m < models.size(); ++m) {
    if (models[m].adapter.empty()) continue;
    options.adapter = models[m].adapter;
    Model model = LoadModel(context, options, console);
    all[m] = Measure(model, models[m].name, console);
    if (!base) base = model.base_options();
  }
  for (std::size_t m = 0; m < models.size(); ++m) {
    if (!models[m].adapter.empty()) continue;
    Model model = LoadModel(context, base ? *base : options, console);
    all[m] = Measure(model, models[m].name, console);
  }
  return all;
}

// A line of JSON for each record of each task, which tells models apart where there are several.
std::string TaskEvaluation::Samples(const std::vector<ModelTasks>& models) const {
  std::string lines;
  for (const ModelTasks& one : models) {
    for (const TaskResult& result : one.results) {
      for (const std::string& sample : result.samples) {
        if (models.size() == 1) {
          lines += sample + "\n";
          continue;
        }
        OrderedJson named = {{"model", one.name}};
        named.update(OrderedJson::parse(sample));
        lines += Dump(named) + "\n";
      }
    }
  }
  return lines;
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
  const std::vector<ComparedModel> names = ModelsOf(model.adapter, compared);
  CheckTasks(options_);
  const std::vector<ModelTasks> models = MeasureAll(context, model, names, console);
  if (!samples_.path.empty()) samples_.Write(console, Samples(models));
  if (json) {
    PrintJson(console.out, ToJson(models));
  } else {
    console.out << (models.size() == 1 ? TaskTable(models.front().results)
                                       : TaskComparisonTable(models));
  }
  return 0;
}

}  // namespace qlora
