// A fine-tuning job: what was asked for, how far it is, and both as JSON, of the API and on disk.
#ifndef QLORA_SERVE_JOBS_JOB_H_
#define QLORA_SERVE_JOBS_JOB_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"
#include "serve/jobs/training_file_check.h"

namespace qlora {

inline constexpr std::string_view kJobPrefix = "ftjob-";

// The body of POST /v1/fine_tuning/jobs, with a number for every "auto".
struct JobRequest {
  std::string model = {};
  std::string training_file = {};
  std::string validation_file = {};  // "": none
  TrainingMethod method = TrainingMethod::kSupervised;
  std::int64_t n_epochs = 0;
  std::int64_t batch_size = 0;  // examples of an optimizer step
  double learning_rate_multiplier = 1;
  double beta = 0;  // of dpo
  std::string suffix = {};
  std::int64_t seed = 0;
  std::map<std::string, std::string> metadata = {};
};

// Reads the body; `auto` and what is absent become the defaults of `train`, and the seed is drawn.
// Errors: ApiError 400 that names the field.
JobRequest ReadJobRequest(const OrderedJson& body);

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
// As the API says it.
std::string_view NameOf(JobStatus status);
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
  std::string adapter = {};  // the folder of the adapter that the training continues; "": none
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

// The object fine_tuning.job.
OrderedJson ToJson(const Job& job);
// The object fine_tuning.job.checkpoint, and its id.
OrderedJson ToJson(const Job& job, const JobCheckpoint& checkpoint);
std::string CheckpointId(const Job& job, const JobCheckpoint& checkpoint);

// The whole job as a file has it, and back. Errors: InvalidInput for what ToRecord cannot have
// written.
Json ToRecord(const Job& job);
Job ReadRecord(const Json& record, const std::string& id, const std::string& where);

}  // namespace qlora

#endif  // QLORA_SERVE_JOBS_JOB_H_
