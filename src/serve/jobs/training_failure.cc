#include "serve/jobs/training_failure.h"

#include <fmt/format.h>

#include "base/text.h"
#include "io/json.h"
#include "qlora/error.h"
#include "serve/api_error.h"
#include "serve/served_models.h"

namespace qlora {
namespace {

bool Has(const std::string& text, std::string_view part) {
  return !part.empty() && text.find(part) != text.npos;
}

std::string WithoutAdvice(const std::string& error) { return error.substr(0, error.find("; ")); }

// Errors of writes, and of the plan of what a run writes (plan/disk_plan.cc), which is about its
// output_dir.
bool IsOfDisk(const std::string& error) {
  return error.starts_with("output_dir") || Has(error, ": cannot be written: ") ||
         Has(error, ": cannot be put in place: ");
}

JobError OfMemory(const std::string& error) {
  const std::string reason =
      error.empty() ? "the system ended the training (SIGKILL), most likely for want of memory"
                    : WithoutAdvice(error);
  return {.code = kNoRoom,
          .message = reason +
                     "; take shorter examples, or give the server more memory (--max_memory); the "
                     "checkpoints of the job, where it has some, are served"};
}

}  // namespace

std::string ErrorOf(const TrainingEnd& end) {
  Json result;
  if (TryParseJson(end.output, result) || !result.is_object()) return "";
  const auto error = result.find("error");
  if (error == result.end() || !error->is_string()) return "";
  const auto text = error->get<std::string>();
  return text.substr(0, text.find('\n'));
}

JobError FailureOf(const TrainingEnd& end, const Job& job, const TrainingFiles& files,
                   const std::string& training_name, const std::string& validation_name) {
  const std::string error = ErrorOf(end);
  // By the system, for nobody here has sent SIGKILL.
  if (end.exit_code == static_cast<int>(ErrorCode::kOutOfMemory) ||
      (end.exit_code == kKilledExit && error.empty())) {
    return OfMemory(error);
  }
  if (IsOfDisk(error)) {
    const ApiError disk = DiskError(error);
    return {.code = disk.code,
            .message = disk.message +
                       "; delete files that no job needs (DELETE /v1/files/{id}), or have somebody "
                       "make room there, and create the job again"};
  }
  std::string message = ReplaceAll(error, files.training, training_name);
  if (!files.validation.empty()) message = ReplaceAll(message, files.validation, validation_name);
  message = ReplaceAll(message, files.run, "the run");
  const bool is_input = end.exit_code == static_cast<int>(ErrorCode::kInvalidInput);
  for (const char* field : {"training_file", "validation_file"}) {
    const bool trains = field == std::string_view("training_file");
    if (!is_input || !Has(error, trains ? files.training : files.validation)) continue;
    return {.code = fmt::format("invalid_{}", field), .message = message, .param = field};
  }
  if (message.empty()) message = fmt::format("the training ended with exit code {}", end.exit_code);
  return {
      .code = "training_failed",
      .message = fmt::format("{}; the log of the job, jobs/{}.log in the folder of --runs, says "
                             "more",
                             WithoutAdvice(message), job.id)};
}

}  // namespace qlora
