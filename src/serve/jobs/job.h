// A fine-tuning job: what was asked for, how far it is, and both as the API says them.
#ifndef QLORA_SERVE_JOBS_JOB_H_
#define QLORA_SERVE_JOBS_JOB_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"
#include "serve/jobs/job_request.h"

namespace qlora {

inline constexpr std::string_view kJobPrefix = "ftjob-";

// A queued job waits for the one that runs. Pausing and cancelling last until the training process
// has ended.
enum class JobStatus {
  kQueued,
  kRunning,
  kPausing,
  kPaused,
  kCancelling,
  kSucceeded,
  kFailed,
  kCancelled
};
// In this order.
inline constexpr std::array<std::string_view, 8> kJobStatusNames = {
    "queued", "running", "pausing", "paused", "cancelling", "succeeded", "failed", "cancelled"};
// As the API says them.
std::string_view NameOf(JobStatus status);
std::string_view NameOf(TrainingMethod method);
// Succeeded, failed or cancelled.
bool IsDone(JobStatus status);

struct JobError {
  std::string code = {};
  std::string message = {};
  std::string param = {};  // "": none
};

struct JobCheckpoint {
  std::int64_t step = 0;
  std::int64_t created_at = 0;
  std::optional<double> train_loss = {};  // none of a step that was skipped
  std::optional<double> valid_loss = {};
};

struct Job {
  std::string id = {};
  std::int64_t number = 0;  // jobs are made, and begin, in this order
  std::int64_t created_at = 0;
  JobRequest request = {};
  std::string base = {};  // the name of the base, of which request.model may be an adapter
  std::string base_fingerprint = {};  // of its weights; "": not known
  // Both as NameWithin (training_config.h) names them. The folder of the adapter that the training
  // continues; "": none. The template in which this is asked, where `train` would take another.
  std::string adapter = {};
  std::string chat_template = {};
  JobStatus status = JobStatus::kQueued;
  std::optional<std::int64_t> finished_at = {};
  std::optional<std::int64_t> trained_tokens = {};
  std::string result_file = {};  // "": none yet
  std::optional<JobError> error = {};
  std::vector<JobCheckpoint> checkpoints = {};   // ascending
  std::vector<std::string> deleted_models = {};  // of those below

  // "ft:BASE:local:SUFFIX:ID", without a character that means something in a path.
  std::string model() const;
  std::string CheckpointModel(const JobCheckpoint& checkpoint) const;
  bool IsDeleted(const std::string& model_name) const;
};

// The whole job as a file has it, and back: job_record.cc. Errors: InvalidInput for what ToRecord
// cannot have written.
Json ToRecord(const Job& job);
Job ReadRecord(const Json& record, const std::string& id, const std::string& where);

// The object fine_tuning.job.
OrderedJson ToJson(const Job& job);
// The object fine_tuning.job.checkpoint, and its id.
OrderedJson ToJson(const Job& job, const JobCheckpoint& checkpoint);
std::string CheckpointId(const Job& job, const JobCheckpoint& checkpoint);

}  // namespace qlora

#endif  // QLORA_SERVE_JOBS_JOB_H_
