// Jobs without a model in memory: the plan of a run, and exported files.
#include <pybind11/stl.h>

#include <map>

#include "base_warning.h"
#include "keywords.h"
#include "nf4_tensor.h"
#include "python_calls.h"
#include "qlora/export.h"
#include "qlora/quantized_base.h"
#include "qlora/shape_plan.h"
#include "report_class.h"
#include "shared_context.h"

namespace qlora::python {
namespace {

namespace py = pybind11;
using pybind11::literals::operator""_a;

// Progress of work that may be broken off at any time.
ProgressFn Breakable(PythonCalls& python) {
  return [&python](std::int64_t, std::int64_t) {
    if (python.Interrupted()) throw Stopped();
  };
}

// The plan as JSON text, and why the run does not fit, or "".
py::tuple PlanFromPython(const py::dict& options, const std::map<std::string, int>& given,
                         const ContextPtr& context) {
  RunKeywords keywords = ReadRunKeywords(options, given);
  TrainOptions& settings = keywords.options;
  PythonCalls python;
  const auto shortage = [](const auto& plan) {
    return plan.memory.shortage.empty() ? plan.disk.shortage : plan.memory.shortage;
  };
  const auto [json, reason] = RunWithCalls(python, [&] {
    return ContextFor(context, settings.threads)->Run([&](Context& c) {
      if (settings.data.dataset.empty()) {
        const ShapePlan plan = PlanShape(c, settings);
        return std::pair(PlanJson(plan), shortage(plan));
      }
      FindQuantizedBase(keywords.save_quantized, settings);
      // As `qlora plan`: output_dir may hold a run.
      const TrainPlan plan = PlanTraining(c, settings, PlanPurpose::kReading, Breakable(python));
      return std::pair(PlanJson(plan), shortage(plan));
    });
  });
  return py::make_tuple(Text(json), Text(reason));
}

ExportReport ExportFromPython(const py::dict& options, const ContextPtr& context) {
  ExportOptions settings;
  OptionTable table;
  settings.Declare(table);
  SetOptions(options, table);
  settings.Complete(table);
  PythonCalls python;
  const ExportReport report = RunWithCalls(python, [&] {
    return ContextOr(context)->Run([&](Context& c) {
      WarnOfOtherBase(settings.model_name_or_path, settings.adapter, python);
      return Export(c, settings, Breakable(python));
    });
  });
  for (const std::string& note : report.notes) Warn(note);
  return report;
}

}  // namespace

void BindJobs(py::module_& module) {
  ReportClass<ExportReport>(module, "ExportReport", "Written files, as export() returns them.")
      .Add("files", &ExportReport::files, "Paths of the files.")
      .Add("bytes", &ExportReport::bytes, "Their size.")
      .Add("format", &ExportReport::format, "As the option format, and never \"auto\".")
      .Add("outtype", &ExportReport::outtype,
           "As the option outtype, and never \"auto\": of blocks, the name of the mixture.")
      .Add("merge_base", &ExportReport::merge_base,
           "What the adapter was merged into: \"nf4\", \"original\", \"blocks\" of a GGUF file, or "
           "\"\" without a merge.")
      .Add("kept_change", &ExportReport::kept_change,
           "Of an adapter that was merged into a GGUF file of blocks or bfloat16 (\"q8_0\", "
           "\"q4_k_m\", \"bf16\" ...): the share of its change that rounding leaves, over all "
           "tensors; otherwise None.")
      .Add("verified", &ExportReport::verified, "True when verify compared the log-probabilities.")
      .Add("mean_logprob_difference", &ExportReport::mean_logprob_difference,
           "With verify: between the model as trained and the file, on average.")
      .Add("max_logprob_difference", &ExportReport::max_logprob_difference,
           "With verify: the largest difference.")
      .Add("seconds", &ExportReport::seconds, "Time of the call.");
  module.def("plan", &PlanFromPython, "options"_a, "given"_a, "context"_a = py::none());
  module.def("export", &ExportFromPython, "options"_a, "context"_a = py::none());
}

}  // namespace qlora::python
