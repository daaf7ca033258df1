// What a training run has written into its folder so far, and the job that is told.
#ifndef QLORA_SERVE_JOBS_RUN_PROGRESS_H_
#define QLORA_SERVE_JOBS_RUN_PROGRESS_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/json_fwd.h"
#include "serve/jobs/job_store.h"
#include "serve/jobs/trainer.h"

namespace qlora {

// Follows the lines that are added to a log of JSON lines. A log that is replaced, as a run that
// resumes does it, is read from its start.
class LogFollower {
 public:
  explicit LogFollower(std::filesystem::path path) : path_(std::move(path)) {}

  // Calls take with each new whole line that is a JSON object.
  void Read(const std::function<void(const Json& line)>& take);

 private:
  std::filesystem::path path_;
  std::uint64_t inode_ = 0;
  std::int64_t offset_ = 0;
};

// Returns a number of a line; nothing for what is none, or not finite.
std::optional<double> NumberIn(const Json& line, const char* key);

// Returns `key` of the line of a step in a log; nothing where there is none.
std::optional<double> ValueAt(const std::filesystem::path& log, std::int64_t step, const char* key);

// The steps of the whole run; 0 while that is not known.
std::int64_t TotalSteps(const std::filesystem::path& run);

// The steps that have a checkpoint, ascending.
std::vector<std::int64_t> CheckpointSteps(const std::filesystem::path& run);

// The tokens that the run has learned from, up to its last checkpoint; nothing without one. Errors:
// InvalidInput for a damaged checkpoint.
std::optional<std::int64_t> TrainedTokens(const std::filesystem::path& run);

// Writes the losses of a run as CSV, a line for each step: step, train_loss, and where the run has
// them train_accuracy, valid_loss, valid_mean_token_accuracy. Errors: Runtime.
void WriteResultFile(const std::filesystem::path& run, const std::filesystem::path& csv);

// Who calls these functions holds the lock of the jobs, and gets Errors: Runtime.
//
// Adds checkpoints to a job, and takes those from it that are no longer there.
void FindCheckpoints(JobStore& jobs, JobEntry& entry, const std::filesystem::path& run);

// Adds checkpoints, and events of steps and of warnings that the training prints.
class JobWatch {
 public:
  // Before the training begins. jobs and entry must outlive this.
  JobWatch(JobStore& jobs, JobEntry& entry, const TrainingTask& task);
  // What is new since the last call.
  void Follow();

 private:
  void AddMetrics(const Json& line);

  JobStore& jobs_;
  JobEntry& entry_;
  const std::filesystem::path run_;
  const std::filesystem::path printed_;
  std::int64_t printed_bytes_;  // of it that are known
  LogFollower log_;
  std::int64_t every_ = 0;  // steps between two events; 0: not known yet
  std::int64_t total_ = 0;
};

}  // namespace qlora

#endif  // QLORA_SERVE_JOBS_RUN_PROGRESS_H_
