#include "log/run_log.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <stdexcept>

#include "base/check.h"
#include "base/memory_info.h"
#include "io/json.h"
#include "log/log_files.h"
#include "log/rank_times.h"
#include "log/tensorboard.h"
#include "step/loss_rise.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// A resumed run writes the lines after its position again. An evaluation that is still due has no
// line at the step of the position.
KeptSteps KeptAt(const TrainPosition& at) {
  return {at.step, at.eval_due ? at.step - 1 : at.step, at.sampled_step};
}

// A log is worth less than the run: one that cannot be written is given up, and the run goes on.
void WarnOfLog(TrainObserver& observer, const std::exception& error) {
  observer.OnWarning(
      fmt::format("{}; the run goes on, and writes no more to this log", error.what()));
}

// JSON Lines is written also where it is not asked for: reports, and the reader of run logs, depend
// on it.
std::vector<std::unique_ptr<LogSink>> OpenLogs(const TrainOptions& options, const KeptSteps& kept,
                                               TrainObserver& observer) {
  const LogTargets targets = ParseReportTo(options.report_to);
  std::vector<std::unique_ptr<LogSink>> sinks;
  const auto open = [&](const std::function<std::unique_ptr<LogSink>()>& make) {
    try {
      sinks.push_back(make());
    } catch (const Error& error) {
      // A log of an earlier run that cannot be read, or a folder that may not be written: the user
      // can mend that, and no step is lost yet.
      if (error.code() != ErrorCode::kRuntime) throw;
      WarnOfLog(observer, error);
    } catch (const fs::filesystem_error& error) {
      WarnOfLog(observer, error);
    }
  };
  open([&] { return OpenJsonLines(options.output_dir, kept); });
  if (targets.csv) open([&] { return OpenCsv(options.output_dir, kept); });
  if (targets.tensorboard) {
    open([&] { return std::make_unique<TensorboardLog>(LoggingDir(options), kept.steps); });
  }
  return sinks;
}

// The columns of train_log, in order; those of ranks only where there are several.
LogFields FieldsOf(const StepReport& r) {
  LogFields fields = {{"step", r.step},
                      {"epoch", r.epoch},
                      {"loss", r.loss},
                      {"grad_norm", r.grad_norm},
                      {"learning_rate", r.learning_rate}};
  for (const MetricValue& metric : r.metrics) fields.push_back({metric.name, metric.value});
  fields.insert(fields.end(), {{"tokens", r.tokens},
                               {"tokens_per_second", r.tokens_per_second},
                               {"memory", r.memory_bytes},
                               {"elapsed", r.elapsed_seconds},
                               {"skipped", r.skipped},
                               {"spike", r.spike},
                               {"limit_share", r.limit_share}});
  if (r.ranks.empty()) return fields;
  Json ranks = Json::array();
  for (const RankReport& rank : r.ranks) {
    ranks.push_back({{"computing", rank.computing_seconds},
                     {"waiting", rank.waiting_seconds},
                     {"memory", rank.memory_bytes}});
  }
  fields.push_back({"ranks", std::move(ranks)});
  return fields;
}

}  // namespace

RunLog::RunLog(const TrainPlan& plan, const TrainPosition& start, bool is_root,
               TrainObserver& observer)
    : total_steps_(plan.total_steps),
      first_step_(start.step),
      is_root_(is_root),
      observer_(observer) {
  if (is_root) sinks_ = OpenLogs(plan.options, KeptAt(start), observer);
}

void RunLog::Write(LogKind kind, const LogFields& fields) {
  std::erase_if(sinks_, [&](const std::unique_ptr<LogSink>& sink) {
    try {
      sink->Write(kind, fields);
      return false;
    } catch (const std::runtime_error& error) {  // Error, filesystem_error
      WarnOfLog(observer_, error);
      return true;
    }
  });
}

void RunLog::WriteStep(const TrainPosition& at, const StepResult& result, StepNotes notes) {
  StepReport report;
  report.step = at.step;
  report.total_steps = total_steps_;
  report.epoch = notes.epochs;
  report.loss = result.loss;
  report.grad_norm = result.grad_norm;
  report.metrics = result.metrics;
  report.learning_rate = result.learning_rate;
  report.tokens = result.totals.supervised;
  report.tokens_per_second = static_cast<double>(result.totals.rows) / notes.seconds;
  report.limit_share = notes.limit_share;
  report.memory_bytes = ResidentBytes();
  for (const RankReport& rank : notes.ranks) {
    report.memory_bytes = std::max(report.memory_bytes, rank.memory_bytes);
  }
  AddStep(notes.ranks, ranks_);
  report.ranks = std::move(notes.ranks);
  report.elapsed_seconds = watch_.seconds();
  // At the mean pace of this process, evaluations and checkpoints included.
  report.remaining_seconds = report.elapsed_seconds / static_cast<double>(at.step - first_step_) *
                             static_cast<double>(total_steps_ - at.step);
  report.skipped = !result.applied;
  report.bad_tensor = result.bad_tensor;
  report.spike = at.loss_spike;
  report.risen = HasRisen(at.start, at.losses);
  report.start_loss = at.start.mean;
  report.recent_loss = MedianOf(at.losses.newest).median;
  Write(LogKind::kStep, FieldsOf(report));
  if (is_root_) observer_.OnStep(report);
}

void RunLog::ShowStepProgress(std::int64_t done, std::int64_t total) {
  if (is_root_) observer_.OnMicroBatch(done, total);
}

void RunLog::ShowEvalProgress(std::int64_t done, std::int64_t total) {
  if (is_root_) observer_.OnEvalProgress(done, total);
}

void RunLog::WriteEval(std::int64_t step, const EvalReport& r) {
  LogFields fields = {{"step", step}, {"eval_loss", r.loss}};
  for (const MetricValue& metric : r.metrics) {
    fields.push_back({"eval_" + metric.name, metric.value});
  }
  fields.insert(fields.end(),
                {{"eval_best", r.best}, {"eval_tokens", r.tokens}, {"eval_runtime", r.seconds}});
  if (!r.files.empty()) {
    Json files = Json::object();
    for (const EvalReport::File& file : r.files) files["eval_" + file.name + "_loss"] = file.loss;
    fields.push_back({"files", std::move(files)});
  }
  Write(LogKind::kEval, fields);
  if (is_root_) observer_.OnEval(step, r);
}

void RunLog::WriteSample(const SampleReport& r) {
  Write(LogKind::kSample, {{"step", r.step}, {"prompt", r.prompt}, {"text", r.text}});
  observer_.OnSample(r);
}

LogTargets ParseReportTo(const std::vector<std::string>& report_to) {
  LogTargets targets;
  for (const std::string& name : report_to) {
    const bool all = name == "all";
    if (!all && name != "none" && name != "jsonl" && name != "csv" && name != "tensorboard") {
      ThrowInvalidInput(
          "report_to: expected jsonl (always written), csv, tensorboard, all or none, found '{}'; "
          "nothing is sent to services",
          name);
    }
    targets.csv = targets.csv || all || name == "csv";
    targets.tensorboard = targets.tensorboard || all || name == "tensorboard";
  }
  return targets;
}

fs::path LoggingDir(const TrainOptions& options) {
  return options.logging_dir.empty() ? fs::path(options.output_dir) / "runs"
                                     : fs::path(options.logging_dir);
}

}  // namespace qlora
