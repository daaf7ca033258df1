#include "serve/jobs/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "io/json.h"

namespace qlora {
namespace {

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

}  // namespace

std::string_view NameOf(JobStatus status) {
  // A process that is to end still runs.
  if (status == JobStatus::kCancelling) status = JobStatus::kRunning;
  const auto i = static_cast<std::size_t>(status);
  return kJobStatusNames[i];
}

std::string_view NameOf(TrainingMethod method) {
  return method == TrainingMethod::kDpo ? "dpo" : "supervised";
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

}  // namespace qlora
