#include "serve/jobs/job.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "io/json.h"
#include "serve/jobs/new_id.h"

namespace qlora {
namespace {

// In the order of JobStatus: as a file has them.
constexpr std::array<std::string_view, 8> kStatusNames = {
    "queued", "running", "pausing", "paused", "cancelling", "succeeded", "failed", "cancelled"};

std::string_view RecordName(JobStatus status) {
  const auto i = static_cast<std::size_t>(status);
  return kStatusNames[i];
}

JobStatus StatusOf(const std::string& name, const std::string& where) {
  const auto found = std::ranges::find(kStatusNames, name);
  if (found == kStatusNames.end()) ThrowInvalidInput("{}: unknown status '{}'", where, name);
  return static_cast<JobStatus>(found - kStatusNames.begin());
}

std::string_view NameOf(TrainingMethod method) {
  return method == TrainingMethod::kDpo ? "dpo" : "supervised";
}

// Letters, digits and what names of models have; everything else, as of paths, becomes a dash.
std::string Plain(std::string_view text) {
  std::string plain(text);
  for (char& c : plain) {
    const bool stays = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_';
    if (!stays) c = '-';
  }
  return plain;
}

// What tells the models of jobs apart.
std::string ShortId(const Job& job) {
  constexpr std::size_t kLetters = 8;
  return job.id.substr(job.id.size() - std::min(kLetters, job.id.size()));
}

template <typename T>
OrderedJson OrNull(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson();
}
OrderedJson OrNull(const std::string& text) {
  return text.empty() ? OrderedJson() : OrderedJson(text);
}

OrderedJson Hyperparameters(const JobRequest& request) {
  OrderedJson values = {{"n_epochs", request.n_epochs},
                        {"batch_size", request.batch_size},
                        {"learning_rate_multiplier", request.learning_rate_multiplier}};
  if (request.method == TrainingMethod::kDpo) values["beta"] = request.beta;
  return values;
}

Json ToRecord(const JobRequest& request) {
  return {{"model", request.model},
          {"training_file", request.training_file},
          {"validation_file", request.validation_file},
          {"method", NameOf(request.method)},
          {"n_epochs", request.n_epochs},
          {"batch_size", request.batch_size},
          {"learning_rate_multiplier", request.learning_rate_multiplier},
          {"beta", request.beta},
          {"suffix", request.suffix},
          {"seed", request.seed},
          {"metadata", request.metadata}};
}

// What a person has changed in a file may be any number.
std::int64_t ReadCount(const Json& record, const char* key, std::int64_t least,
                       const std::string& where) {
  const auto count = JsonGet<std::int64_t>(record, key, where);
  if (count < least) {
    ThrowInvalidInput("{}: {}: expected at least {}, found {}", where, key, least, count);
  }
  return count;
}

JobRequest ReadRequest(const Json& record, const std::string& where) {
  JobRequest request;
  request.model = JsonGet<std::string>(record, "model", where);
  request.training_file = JsonGet<std::string>(record, "training_file", where);
  request.validation_file = JsonGet<std::string>(record, "validation_file", where);
  request.method = JsonGet<std::string>(record, "method", where) == "dpo"
                       ? TrainingMethod::kDpo
                       : TrainingMethod::kSupervised;
  request.n_epochs = ReadCount(record, "n_epochs", 1, where);
  request.batch_size = ReadCount(record, "batch_size", 1, where);
  request.learning_rate_multiplier = JsonGet<double>(record, "learning_rate_multiplier", where);
  request.beta = JsonGet<double>(record, "beta", where);
  request.suffix = JsonGet<std::string>(record, "suffix", where);
  request.seed = ReadCount(record, "seed", 0, where);
  const Json* metadata = FindJson(record, "metadata", where);
  if (metadata == nullptr || !metadata->is_object()) return request;
  for (const auto& [key, value] : metadata->items()) {
    request.metadata[key] = JsonAs<std::string>(value, key, where);
  }
  return request;
}

std::vector<JobCheckpoint> ReadCheckpoints(const Json& record, const std::string& where) {
  std::vector<JobCheckpoint> checkpoints;
  const Json* list = FindJson(record, "checkpoints", where);
  if (list == nullptr || !list->is_array()) return checkpoints;
  for (const Json& one : *list) {
    JobCheckpoint& checkpoint = checkpoints.emplace_back();
    checkpoint.step = ReadCount(one, "step", 0, where);
    checkpoint.created_at = JsonGet<std::int64_t>(one, "created_at", where);
    if (FindJson(one, "train_loss", where) != nullptr) {
      checkpoint.train_loss = JsonGet<double>(one, "train_loss", where);
    }
    if (FindJson(one, "valid_loss", where) != nullptr) {
      checkpoint.valid_loss = JsonGet<double>(one, "valid_loss", where);
    }
  }
  return checkpoints;
}

}  // namespace

std::string_view NameOf(JobStatus status) {
  // A process that is to end still runs.
  if (status == JobStatus::kCancelling) return RecordName(JobStatus::kRunning);
  return RecordName(status);
}

bool IsDone(JobStatus status) { return status >= JobStatus::kSucceeded; }

std::string Job::model() const {
  return fmt::format("ft:{}:local:{}:{}", Plain(base), Plain(request.suffix), ShortId(*this));
}

std::string Job::CheckpointModel(const JobCheckpoint& checkpoint) const {
  return fmt::format("{}:ckpt-step-{}", model(), checkpoint.step);
}

bool Job::IsDeleted(const std::string& model_name) const {
  return std::ranges::count(deleted_models, model_name) > 0;
}

OrderedJson ToJson(const Job& job) {
  const JobRequest& request = job.request;
  const std::string method(NameOf(request.method));
  const bool succeeded = job.status == JobStatus::kSucceeded;
  OrderedJson error;
  if (job.error) {
    error = {{"code", job.error->code},
             {"message", job.error->message},
             {"param", OrNull(job.error->param)}};
  }
  OrderedJson json = {{"id", job.id},
                      {"object", "fine_tuning.job"},
                      {"created_at", job.created_at},
                      {"finished_at", OrNull(job.finished_at)},
                      {"model", request.model},
                      {"fine_tuned_model", succeeded ? OrderedJson(job.model()) : OrderedJson()},
                      {"organization_id", "org-local"},
                      {"status", NameOf(job.status)},
                      {"training_file", request.training_file},
                      {"validation_file", OrNull(request.validation_file)},
                      {"hyperparameters", Hyperparameters(request)},
                      {"trained_tokens", OrNull(job.trained_tokens)},
                      {"error", error},
                      {"user_provided_suffix", OrNull(request.suffix)},
                      {"seed", request.seed},
                      {"estimated_finish", nullptr},
                      {"integrations", OrderedJson::array()},
                      {"metadata", request.metadata}};
  json["result_files"] = OrderedJson::array();
  if (!job.result_file.empty()) json["result_files"].push_back(job.result_file);
  json["method"] = {{"type", method}, {method, {{"hyperparameters", Hyperparameters(request)}}}};
  return json;
}

std::string CheckpointId(const Job& job, const JobCheckpoint& checkpoint) {
  return fmt::format("ftckpt-{}-{}", ShortId(job), checkpoint.step);
}

OrderedJson ToJson(const Job& job, const JobCheckpoint& checkpoint) {
  OrderedJson metrics = {{"step", checkpoint.step}, {"train_loss", OrNull(checkpoint.train_loss)}};
  if (checkpoint.valid_loss) {
    // All of the file is evaluated.
    metrics["valid_loss"] = *checkpoint.valid_loss;
    metrics["full_valid_loss"] = *checkpoint.valid_loss;
  }
  return {{"id", CheckpointId(job, checkpoint)},
          {"object", "fine_tuning.job.checkpoint"},
          {"created_at", checkpoint.created_at},
          {"fine_tuning_job_id", job.id},
          {"fine_tuned_model_checkpoint", job.CheckpointModel(checkpoint)},
          {"step_number", checkpoint.step},
          {"metrics", std::move(metrics)}};
}

Json ToRecord(const Job& job) {
  Json record = {{"number", job.number},
                 {"created_at", job.created_at},
                 {"request", ToRecord(job.request)},
                 {"base", job.base},
                 {"base_fingerprint", job.base_fingerprint},
                 {"adapter", job.adapter},
                 {"status", RecordName(job.status)},
                 {"result_file", job.result_file},
                 {"deleted_models", job.deleted_models},
                 {"checkpoints", Json::array()}};
  if (job.finished_at) record["finished_at"] = *job.finished_at;
  if (job.trained_tokens) record["trained_tokens"] = *job.trained_tokens;
  if (job.error) {
    record["error"] = {
        {"code", job.error->code}, {"message", job.error->message}, {"param", job.error->param}};
  }
  for (const JobCheckpoint& checkpoint : job.checkpoints) {
    Json& one = record["checkpoints"].emplace_back();
    one = {{"step", checkpoint.step}, {"created_at", checkpoint.created_at}};
    if (checkpoint.train_loss) one["train_loss"] = *checkpoint.train_loss;
    if (checkpoint.valid_loss) one["valid_loss"] = *checkpoint.valid_loss;
  }
  return record;
}

Job ReadRecord(const Json& record, const std::string& id, const std::string& where) {
  Job job;
  job.id = id;
  job.number = ReadCount(record, "number", 0, where);
  job.created_at = JsonGet<std::int64_t>(record, "created_at", where);
  const Json* request = FindJson(record, "request", where);
  if (request == nullptr) ThrowInvalidInput("{}: request is missing", where);
  job.request = ReadRequest(*request, where);
  job.base = JsonGet<std::string>(record, "base", where);
  job.base_fingerprint = JsonGetOr<std::string>(record, "base_fingerprint", "", where);
  job.adapter = JsonGet<std::string>(record, "adapter", where);
  job.status = StatusOf(JsonGet<std::string>(record, "status", where), where);
  job.result_file = JsonGet<std::string>(record, "result_file", where);
  job.deleted_models = JsonGet<std::vector<std::string>>(record, "deleted_models", where);
  job.checkpoints = ReadCheckpoints(record, where);
  if (FindJson(record, "finished_at", where) != nullptr) {
    job.finished_at = JsonGet<std::int64_t>(record, "finished_at", where);
  }
  if (FindJson(record, "trained_tokens", where) != nullptr) {
    job.trained_tokens = JsonGet<std::int64_t>(record, "trained_tokens", where);
  }
  if (const Json* error = FindJson(record, "error", where)) {
    job.error = JobError{.code = JsonGet<std::string>(*error, "code", where),
                         .message = JsonGet<std::string>(*error, "message", where),
                         .param = JsonGet<std::string>(*error, "param", where)};
  }
  return job;
}

}  // namespace qlora
