#include "training/gate_check.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "command/common.h"
#include "command/model_loading.h"
#include "qlora/tasks.h"
#include "terminal/task_table.h"
#include "terminal/terminal.h"

namespace qlora {
namespace {

std::vector<TaskResult> Measure(Context& context, const ModelOptions& options,
                                const GateSuite& suite, const Console& console) {
  Model model = LoadModel(context, options, console);
  StatusLine line(console.err, console.style);
  return MeasureGate(model, suite, [&](std::int64_t done, std::int64_t total) {
    ShowProgress(line, "gate", done, total);
  });
}

OrderedJson ToJson(const GateVerdict& verdict) {
  OrderedJson json = {{"task", verdict.task}};
  json.update(ComparisonJson(verdict.figure));
  json["max_loss"] = verdict.max_loss;
  json["lost"] = verdict.lost;
  OrderedJson examples = OrderedJson::array();
  for (const std::string& sample : verdict.examples) {
    examples.push_back(OrderedJson::parse(sample));
  }
  json["examples"] = std::move(examples);
  return json;
}

}  // namespace

int CheckGate(const std::string& suite_path, const TrainOptions& options,
              const std::string& adapter_dir, int threads, const Console& console) {
  const GateSuite suite = ReadGateSuite(suite_path);
  Context context(threads);
  ModelOptions model;
  model.model_name_or_path = options.model_name_or_path;
  model.compute_dtype = options.compute_dtype;
  model.adapter = {adapter_dir};
  const std::vector<TaskResult> adapter = Measure(context, model, suite, console);
  model.adapter.clear();
  const std::vector<TaskResult> base = Measure(context, model, suite, console);
  const std::vector<GateVerdict> verdicts = JudgeGate(suite, base, adapter);
  bool passed = true;
  OrderedJson json = {{"gate", suite_path}, {"passed", true}, {"tasks", OrderedJson::array()}};
  for (const GateVerdict& verdict : verdicts) {
    passed = passed && !verdict.lost;
    json["tasks"].push_back(ToJson(verdict));
    const TaskComparison& row = verdict.figure;
    console.err << fmt::format(
        "gate: {} {} {:.4f} of the base, {:.4f} of the adapter ({:+.4f}, p {:.4f} {}); may lose "
        "{:g}: {}\n",
        verdict.task, row.name, row.first, row.second, row.difference, row.p, row.test,
        verdict.max_loss, verdict.lost ? "LOST" : "kept");
  }
  json["passed"] = passed;
  const std::filesystem::path file = std::filesystem::path(adapter_dir) / "gate.json";
  WriteTextFile(file, Dump(json) + "\n");
  if (passed) return 0;
  console.err << fmt::format(
      "the adapter is saved and has lost more than {} allows; examples are in {}\n", suite_path,
      file.string());
  return kGateExit;
}

}  // namespace qlora
