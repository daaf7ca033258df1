// Training: keyword options, callbacks, and the report of a run.
#include "base/check.h"
#include "base_warning.h"
#include "dist/launch.h"
#include "keywords.h"
#include "nf4_tensor.h"
#include "python_calls.h"
#include "qlora/quantized_base.h"
#include "qlora/train.h"
#include "report_class.h"
#include "shared_context.h"

namespace qlora::python {
namespace {

namespace py = pybind11;
using pybind11::literals::operator""_a;

// Hands the events of a run to Python. An exception of Python ends the run: with a checkpoint, or,
// while the weights are loaded, at once.
class CallbackObserver : public TrainObserver {
 public:
  // callbacks: names of events to callables.
  CallbackObserver(const py::dict& callbacks, PythonCalls& python)
      : callbacks_(callbacks), python_(python) {}

  void OnLoad(std::int64_t done, std::int64_t total) override {
    // Arguments are made inside, with the interpreter's lock, and only if someone listens.
    Call("on_load", [&] { return py::make_tuple(done, total); });
    // Nothing is trained yet that a checkpoint could keep.
    if (python_.stopped()) throw Stopped();
  }
  void OnResume(const std::string& checkpoint, std::int64_t step, std::int64_t total) override {
    Call("on_resume", [&] { return py::make_tuple(Text(checkpoint), step, total); });
  }
  void OnStep(const StepReport& report) override {
    Call("on_step", [&] { return py::make_tuple(report); });
  }
  void OnEval(std::int64_t step, const EvalReport& report) override {
    Call("on_eval", [&] { return py::make_tuple(step, report); });
  }
  void OnSample(const SampleReport& report) override {
    Call("on_sample", [&] { return py::make_tuple(report); });
  }
  void OnCheckpoint(const std::string& dir) override {
    last_checkpoint_ = dir;
    Call("on_checkpoint", [&] { return py::make_tuple(Text(dir)); });
  }
  void OnWarning(const std::string& text) override { Warn({text}); }
  bool ShouldStop() override { return python_.Interrupted(); }
  bool ShouldFinish() override { return finishes_; }

  // Warnings of Python. The user's filter may make errors of them.
  void Warn(const std::vector<std::string>& warnings) {
    for (const std::string& warning : warnings) {
      python_([&] { python::Warn(warning); });
    }
  }

  const std::string& last_checkpoint() const { return last_checkpoint_; }

 private:
  template <typename Arguments>
  void Call(const char* event, const Arguments& arguments) {
    python_([&] {
      if (callbacks_.contains(event) && AsksToStop(callbacks_[event](*arguments()))) {
        finishes_ = true;
      }
    });
  }

  bool finishes_ = false;
  const py::dict& callbacks_;
  PythonCalls& python_;
  std::string last_checkpoint_;
};

// Raises the exception of Python that ended a run; Ctrl+C with the checkpoint that was saved.
[[noreturn]] void RaiseAgain(const py::error_already_set& error, const std::string& checkpoint) {
  // Other exceptions are the caller's own and pass as they are.
  if (!error.matches(PyExc_KeyboardInterrupt) || checkpoint.empty()) throw error;
  PyErr_SetString(PyExc_KeyboardInterrupt,
                  fmt::format("checkpoint saved in {}; to resume, run the same call with "
                              "resume_from_checkpoint=\"auto\"",
                              checkpoint)
                      .c_str());
  throw py::error_already_set();
}

// The plan of the run, on the quantized base in the folder `save_quantized` where that is not "".
TrainPlan PlanRun(Context& context, TrainOptions& options, const std::string& save_quantized,
                  PythonCalls& python) {
  const bool make_base = FindQuantizedBase(save_quantized, options);
  // While data are read, and between two tensors. Nothing appears in a folder then.
  const auto break_off = [&](std::int64_t, std::int64_t) {
    if (python.Interrupted()) throw Stopped();
  };
  TrainPlan plan = PlanTraining(context, options, PlanPurpose::kTraining, break_off);
  if (!make_base) return plan;
  CheckPlan(plan);
  MakeQuantizedBase(context, save_quantized, options, break_off);
  return PlanOnQuantizedBase(context, plan, save_quantized);
}

// Otherwise each process would train the same run by itself.
void RefuseRanks() {
  const Launched launched = ReadLauncher();
  if (!launched.problem.empty()) throw Error(ErrorCode::kInvalidInput, launched.problem);
  if (launched.size == 1) return;
  ThrowInvalidInput(
      "a launcher has started several ranks, and train() is the work of one process: start "
      "`qlora train` with it, or remove its variables (RANK, OMPI_COMM_WORLD_RANK ...) from "
      "os.environ");
}

RunSummary TrainFromPython(const py::dict& options, const py::dict& callbacks,
                           const std::map<std::string, int>& given, const ContextPtr& context) {
  RefuseRanks();
  RunKeywords keywords = ReadRunKeywords(options, given);
  PythonCalls python;
  CallbackObserver observer(callbacks, python);
  const auto run = [&] {
    // Plan and training in one: the plan is of this number of threads.
    return ContextFor(context, keywords.options.threads)->Run([&](Context& c) {
      TrainOptions& chosen = keywords.options;
      // Of the model as it was named: PlanRun puts its quantized form in its place.
      WarnOfOtherBase(chosen.model_name_or_path, {chosen.adapter}, python);
      const TrainPlan plan = PlanRun(c, chosen, keywords.save_quantized, python);
      // Before weights are loaded: a user who makes warnings errors has lost nothing.
      observer.Warn(plan.warnings);
      if (python.Interrupted()) throw Stopped();
      return Train(c, plan, observer);
    });
  };
  RunSummary summary;
  try {
    summary = RunWithCalls(python, run);
  } catch (const py::error_already_set& error) {
    RaiseAgain(error, observer.last_checkpoint());
  }
  // The adapter is saved; the exception makes a script notice the divergence.
  if (summary.diverged) throw Error(ErrorCode::kRuntime, summary.divergence);
  return summary;
}

void BindTrainReports(py::module_& module) {
  ReportClass<StepReport>(module, "StepReport", "One optimizer step, as on_step receives it.")
      .Add("step", &StepReport::step, "1 for the first step.")
      .Add("total_steps", &StepReport::total_steps, "Steps of the whole run.")
      .Add("epoch", &StepReport::epoch, "Epochs that are done, with a fraction.")
      .Add("loss", &StepReport::loss, "Mean over the supervised tokens of the step.")
      .Add("grad_norm", &StepReport::grad_norm, "Norm of the gradient before clipping.")
      .AddMetrics()
      .Add("learning_rate", &StepReport::learning_rate, "Learning rate of the step.")
      .Add("tokens", &StepReport::tokens, "Supervised tokens of the step.")
      .Add("tokens_per_second", &StepReport::tokens_per_second, "All tokens, supervised or not.")
      .Add("limit_share", &StepReport::limit_share,
           "Share of the arithmetic limit that it reached.")
      .Add("memory_bytes", &StepReport::memory_bytes, "Resident memory of the process.")
      .Add("elapsed_seconds", &StepReport::elapsed_seconds, "Time since the first step began.")
      .Add("remaining_seconds", &StepReport::remaining_seconds, "Estimate for the other steps.")
      .Add("skipped", &StepReport::skipped, "True when a NaN or Inf kept the step from counting.")
      .Add("spike", &StepReport::spike, "True when the loss is far above those of recent steps.")
      .Add("bad_tensor", &StepReport::bad_tensor, "Tensor of the first NaN or Inf; else empty.");
  ReportClass<EvalReport>(module, "EvalReport", "One evaluation, as on_eval receives it.")
      .Add("loss", &EvalReport::loss, "Mean over the supervised tokens.")
      .AddMetrics()
      .Add("tokens", &EvalReport::tokens, "Supervised tokens.")
      .Add("seconds", &EvalReport::seconds, "Time of the evaluation.")
      .Add("best", &EvalReport::best, "True for the best evaluation so far.");
  ReportClass<SampleReport>(module, "SampleReport", "A text that the model wrote during training.")
      .Add("step", &SampleReport::step, "Steps done before it.")
      .Add("prompt", &SampleReport::prompt, "Prompt of sample_prompts.")
      .Add("text", &SampleReport::text, "Text that continues it.");
  ReportClass<RunSummary>(module, "TrainSummary", "A finished run, as train() returns it.")
      .Add("steps", &RunSummary::steps, "Steps of the whole run.")
      .Add("resumed_step", &RunSummary::resumed_step, "Steps done before this call.")
      .Add("tokens", &RunSummary::tokens, "Supervised tokens of the whole run.")
      .Add("seconds", &RunSummary::seconds, "Time of this call, without loading.")
      .Add("mean_loss", &RunSummary::mean_loss, "Mean over the steps of the whole run, or NaN.")
      .Add("peak_memory_bytes", &RunSummary::peak_memory_bytes, "Peak memory of the process.")
      .Add("stopped_early", &RunSummary::stopped_early, "True when early stopping ended the run.")
      .Add("skipped_steps", &RunSummary::skipped_steps, "Steps with a NaN or Inf.")
      .Add("best_step", &RunSummary::best_step, "Step of the best evaluation, or -1.")
      .Add("adapter_dir", &RunSummary::adapter_dir, "Folder of the adapter, for Model.load.");
}

}  // namespace

void BindTrain(py::module_& module) {
  BindTrainReports(module);
  module.def("train", &TrainFromPython, "options"_a, "callbacks"_a, "given"_a,
             "context"_a = py::none());
}

}  // namespace qlora::python
