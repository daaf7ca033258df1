#include "tasks/gate_check.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "command/common.h"
#include "command/model_loading.h"
#include "log/log_files.h"
#include "tasks/task_table.h"
#include "terminal/terminal.h"

namespace qlora {
namespace {

OrderedJson ToJson(const GateVerdict& verdict) {
  OrderedJson json = {{"task", verdict.task}};
  json.update(ComparisonJson(verdict.figure));
  json["max_loss"] = verdict.max_loss;
  json["lost"] = verdict.lost;
  json["by_chance"] = verdict.by_chance;
  OrderedJson examples = OrderedJson::array();
  for (const std::string& sample : verdict.examples) {
    examples.push_back(OrderedJson::parse(sample));
  }
  json["examples"] = std::move(examples);
  return json;
}

std::string LineOf(const GateVerdict& verdict) {
  const TaskComparison& row = verdict.figure;
  return fmt::format(
      "gate: {} {} {:.4f} of the base, {:.4f} of the adapter ({:+.4f}, p {:.4f} {}); may lose "
      "{:g}: {}\n",
      verdict.task, row.name, row.first, row.second, row.difference, row.p, row.test,
      verdict.max_loss,
      verdict.lost        ? "LOST"
      : verdict.by_chance ? "kept, as chance explains the loss"
                          : "kept");
}

}  // namespace

int CheckGate(Context& context, const GateSuite& suite, const TrainOptions& options,
              const std::string& adapter_dir, const std::function<void()>& check,
              const Console& console) {
  const auto measure = [&](Model& model) {
    StatusLine line(console.err, console.style);
    return MeasureGate(model, suite, [&](std::int64_t done, std::int64_t total) {
      check();
      ShowProgress(line, "gate", done, total);
    });
  };
  ModelOptions form;
  form.model_name_or_path = options.model_name_or_path;
  form.compute_dtype = options.compute_dtype;
  form.adapter = {adapter_dir};
  std::vector<TaskResult> adapter;
  {
    Model model = LoadModel(context, form, console, check);
    adapter = measure(model);
    form = model.base_options();
  }
  Model model = LoadModel(context, form, console, check);
  const std::vector<TaskResult> base = measure(model);
  bool passed = true;
  OrderedJson json = {{"gate", suite.path}, {"passed", true}, {"tasks", OrderedJson::array()}};
  for (const GateVerdict& verdict : JudgeGate(suite, base, adapter)) {
    passed = passed && !verdict.lost;
    json["tasks"].push_back(ToJson(verdict));
    console.err << LineOf(verdict);
  }
  json["passed"] = passed;
  const std::filesystem::path file = std::filesystem::path(adapter_dir) / kGateFile;
  WriteTextFile(file, Dump(json) + "\n");
  if (passed) return 0;
  console.err << fmt::format("the adapter has lost more than {} allows; examples are in {}\n",
                             suite.path, file.string());
  return kGateExit;
}

}  // namespace qlora
