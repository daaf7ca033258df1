#include <algorithm>

#include "base/check.h"
#include "io/json.h"
#include "serve/jobs/job.h"

namespace qlora {
namespace {

JobStatus StatusOf(const std::string& name, const std::string& where) {
  const auto found = std::ranges::find(kJobStatusNames, name);
  if (found == kJobStatusNames.end()) ThrowInvalidInput("{}: unknown status '{}'", where, name);
  return static_cast<JobStatus>(found - kJobStatusNames.begin());
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
  const auto method = JsonGet<std::string>(record, "method", where);
  request.method = method == "dpo" ? TrainingMethod::kDpo : TrainingMethod::kSupervised;
  if (NameOf(request.method) != method) ThrowInvalidInput("{}: unknown method '{}'", where, method);
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

template <typename T>
std::optional<T> ReadOptional(const Json& record, const char* key, const std::string& where) {
  if (FindJson(record, key, where) == nullptr) return std::nullopt;
  return JsonGet<T>(record, key, where);
}

std::vector<JobCheckpoint> ReadCheckpoints(const Json& record, const std::string& where) {
  std::vector<JobCheckpoint> checkpoints;
  const Json* list = FindJson(record, "checkpoints", where);
  if (list == nullptr || !list->is_array()) return checkpoints;
  for (const Json& one : *list) {
    JobCheckpoint& checkpoint = checkpoints.emplace_back();
    checkpoint.step = ReadCount(one, "step", 0, where);
    checkpoint.created_at = JsonGet<std::int64_t>(one, "created_at", where);
    checkpoint.train_loss = ReadOptional<double>(one, "train_loss", where);
    checkpoint.valid_loss = ReadOptional<double>(one, "valid_loss", where);
  }
  return checkpoints;
}

}  // namespace

Json ToRecord(const Job& job) {
  const auto status = static_cast<std::size_t>(job.status);
  Json record = {{"number", job.number},
                 {"created_at", job.created_at},
                 {"request", ToRecord(job.request)},
                 {"base", job.base},
                 {"base_fingerprint", job.base_fingerprint},
                 {"adapter", job.adapter},
                 {"chat_template", job.chat_template},
                 {"status", kJobStatusNames[status]},
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
  job.chat_template = JsonGetOr<std::string>(record, "chat_template", "", where);
  job.status = StatusOf(JsonGet<std::string>(record, "status", where), where);
  job.result_file = JsonGet<std::string>(record, "result_file", where);
  job.deleted_models = JsonGet<std::vector<std::string>>(record, "deleted_models", where);
  job.checkpoints = ReadCheckpoints(record, where);
  job.finished_at = ReadOptional<std::int64_t>(record, "finished_at", where);
  job.trained_tokens = ReadOptional<std::int64_t>(record, "trained_tokens", where);
  if (const Json* error = FindJson(record, "error", where)) {
    job.error = JobError{.code = JsonGet<std::string>(*error, "code", where),
                         .message = JsonGet<std::string>(*error, "message", where),
                         .param = JsonGet<std::string>(*error, "param", where)};
  }
  return job;
}

}  // namespace qlora
