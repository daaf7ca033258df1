// Reports of a run while it trains: every event goes to the log files and to the observer.
//
// run_log.cc decides which fields an event has. log_files.h writes train_log.jsonl and CSV,
// tensorboard.h writes TensorBoard's event files. rank_times.h sums what ranks say of steps.
// log_reader.h reads the logs of a run into one JSON object, which the page in cli/report/ draws
// for `qlora report` and for train --dashboard.
#ifndef QLORA_LOG_RUN_LOG_H_
#define QLORA_LOG_RUN_LOG_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/stopwatch.h"
#include "checkpoint/train_position.h"
#include "log/log_files.h"
#include "qlora/train.h"
#include "step/step.h"

namespace qlora {

// What is known of a step besides its result.
struct StepNotes {
  double epochs = 0;                   // passes over the data so far
  double seconds = 0;                  // that it took
  double limit_share = 0;              // as in StepReport
  std::vector<RankReport> ranks = {};  // of each rank; empty for a run of one process
};

class RunLog {
 public:
  // Opens the logs of a run that begins, or resumes, at `start`. A log that cannot be opened or
  // written, as on a full disk, is a warning to the observer, and the run goes on without it.
  // Of several ranks, rank 0 alone writes and reports.
  RunLog(const TrainPlan& plan, const TrainPosition& start, bool is_root, TrainObserver& observer);

  // A step that led to the position `at`.
  void WriteStep(const TrainPosition& at, const StepResult& result, StepNotes notes);
  // For the observer alone.
  void ShowStepProgress(std::int64_t done, std::int64_t total);
  void ShowEvalProgress(std::int64_t done, std::int64_t total);
  void WriteEval(std::int64_t step, const EvalReport& report);
  void WriteSample(const SampleReport& report);

  // Seconds since the logs were opened.
  double seconds() const { return watch_.seconds(); }
  // As RunSummary::ranks.
  const std::vector<RankReport>& ranks() const { return ranks_; }

 private:
  void Write(LogKind kind, const LogFields& fields);

  std::int64_t total_steps_;
  std::int64_t first_step_;
  bool is_root_;
  TrainObserver& observer_;
  std::vector<std::unique_ptr<LogSink>> sinks_;
  Stopwatch watch_;
  std::vector<RankReport> ranks_;
};

// The logs of options.report_to. JSON Lines are always written in addition.
struct LogTargets {
  bool csv = false;
  bool tensorboard = false;
};
// Errors: InvalidInput for a service that is not supported.
LogTargets ParseReportTo(const std::vector<std::string>& report_to);

// The folder of TensorBoard's event files: options.logging_dir, or output_dir/runs.
std::filesystem::path LoggingDir(const TrainOptions& options);

}  // namespace qlora

#endif  // QLORA_LOG_RUN_LOG_H_
