#include "train/evaluation.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "plan/run/prepared_run.h"

namespace qlora {
namespace {

// The names of the files without folders and extensions; whole where two would be the same.
std::vector<std::string> ShortNames(const std::vector<FileReport>& files) {
  std::vector<std::string> names;
  std::set<std::string> different;
  for (const FileReport& file : files) {
    names.push_back(std::filesystem::path(file.path).stem().string());
    different.insert(names.back());
  }
  if (different.size() == files.size()) return names;
  std::transform(files.begin(), files.end(), names.begin(),
                 [](const FileReport& file) { return file.path; });
  return names;
}

}  // namespace

bool Evaluation::IsDueOnStart(const TrainPosition& at) const {
  return plan_.data.held_out && plan_.options.eval_on_start && at.step == 0;
}

bool Evaluation::IsDueAfter(const StepPlace& place) const {
  if (!plan_.data.held_out) return false;
  // The last step is always evaluated, so that the result has a figure to be judged by.
  if (place.step == plan_.total_steps) return true;
  return IsDue(EvalInterval(plan_.options, plan_.total_steps), place);
}

Evaluation::Evaluation(const TrainPlan& plan, LoadedRun& loaded, StopRules& stop, RunLog& log)
    : plan_(plan), loaded_(loaded), stop_(stop), log_(log) {
  const std::optional<Dataset>& held_out = plan.run->data->held_out;
  // A part that was held out of the training data is one set, whatever files it comes from.
  if (!held_out || plan.options.data.eval_dataset.empty()) return;
  const std::vector<FileReport>& files = held_out->report().files;
  if (files.size() < 2) return;
  const std::vector<std::string> names = ShortNames(files);
  for (std::int64_t f = 0; f < std::ssize(files); ++f) {
    if (files[f].samples > 0) parts_.push_back({names[f], held_out->OfFile(f)});
  }
}

EvalProgress Evaluation::ProgressFrom(std::int64_t before) {
  return [this, before](std::int64_t done, std::int64_t /*total*/) {
    log_.ShowEvalProgress(before + done, plan_.run->data->held_out->size());
    return !stop_.AskHere();
  };
}

// Runs in the arena of training's activations, which hold nothing between steps. Stopping is asked
// for at every progress report; an evaluation that was stopped has no result.
AnswerMeter Evaluation::MeterFrom(std::int64_t before) {
  return {loaded_.communicator, plan_.run->start.place, *loaded_.decoder,
          &loaded_.adapter,     loaded_.passes.front(), ProgressFrom(before)};
}

// As WindowTotals::kl, over all of the data: the prompts of one file may be all the same. 0 where
// the objective needs none.
std::optional<double> Evaluation::MeasureKl() {
  if (!plan_.run->steps.step.objective->needs_kl()) return 0;
  return MeterFrom(0).MeasureKl(*plan_.run->data->held_out, loaded_.reference,
                                plan_.run->data->stream.max_length);
}

// Several files are measured as one: their sums are added.
std::optional<EvalReport> Evaluation::MeasureAll() {
  const Dataset& held_out = *plan_.run->data->held_out;
  const Objective& objective = *plan_.run->steps.step.objective;
  const std::optional<double> kl = MeasureKl();
  if (!kl) return {};
  EvalReport report;
  DatasetSums all;
  std::int64_t before = 0;
  const auto measure = [&](const Dataset& data, const std::string& file) {
    const std::optional<DatasetSums> part =
        MeterFrom(before).Evaluate(objective, data, loaded_.reference, *kl);
    if (!part) return false;
    before += data.size();
    all.Add(*part);
    if (!file.empty()) {
      report.files.push_back(
          {file, objective.Values(part->sums, part->totals).front(), part->totals.supervised});
    }
    return true;
  };
  if (parts_.empty() && !measure(held_out, "")) return {};
  for (const Part& part : parts_) {
    if (!measure(part.data, part.name)) return {};
  }
  const std::vector<double> values = objective.Values(all.sums, all.totals);
  report.loss = values.front();
  report.metrics = MetricsOf(objective, values, false);
  report.tokens = all.totals.supervised;
  report.seconds = all.seconds;
  return report;
}

bool Evaluation::Run(TrainPosition& at) {
  if (!at.eval_due) return false;
  std::optional<EvalReport> measured = MeasureAll();
  if (!measured) {
    stop_.Ask();  // so that all ranks know
    return false;
  }
  at.eval_due = false;
  EvalReport& report = *measured;
  if (at.step > 0) {  // the untrained model is not a candidate
    const std::string& name = plan_.options.metric_for_best_model;
    const Metric& metric = MetricNamed(*plan_.run->steps.step.objective, name);
    const double value = name == "loss" ? report.loss : ValueOf(report.metrics, name);
    report.best = at.best.Add(at.step, value, metric.higher_is_better,
                              plan_.options.early_stopping_threshold);
  }
  log_.WriteEval(at.step, report);
  return report.best;
}

}  // namespace qlora
