#include "serve/jobs/fine_tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/stopwatch.h"
#include "io/json.h"
#include "qlora/error.h"
#include "serve/api_error.h"
#include "serve/jobs/training_config.h"

namespace qlora {
namespace {

// Returns whether the file holds conversations. Files that are not there are wrong fields of the
// request.
bool CheckFile(const FileStore& files, const std::string& id, const char* field,
               TrainingMethod method) {
  const StoredFile file = files.Get(id, field);
  if (file.purpose != kTrainingPurpose) {
    throw ApiError(400,
                   fmt::format("{}: expected a file of purpose {}, found {}", field,
                               kTrainingPurpose, file.purpose),
                   field);
  }
  try {
    return CheckTrainingFile(files.BytesOf(id, field), file.filename, method);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidInput) throw;
    throw ApiError(400, fmt::format("{}: {}", field, error.what()), field,
                   fmt::format("invalid_{}", field));
  }
}

}  // namespace

FineTuning::FineTuning(FineTuningOptions options, ServedModels& models, Trainer trainer,
                       std::function<void(const std::string& line)> log)
    : options_(std::move(options)),
      served_(models),
      files_(options_.folder / "files", log),
      jobs_(options_.folder / "jobs", std::move(log)),
      models_(options_.folder, options_.base_fingerprint, jobs_, models),
      runner_(options_, jobs_, files_, models_, std::move(trainer)) {}

std::optional<HttpBody> FineTuning::BodyOf(const HttpRequest& head) const {
  constexpr std::int64_t kFormBytes = 1 << 16;  // around the file
  if (head.method != "POST" || head.path != "/v1/files") return std::nullopt;
  return HttpBody{.limit = static_cast<std::size_t>(options_.file_bytes + kFormBytes),
                  .file = files_.NewUpload().string()};
}

void FineTuning::RemoveFile(const std::string& id) {
  const auto lock = jobs_.Lock();
  for (const JobEntry* entry : jobs_.All()) {
    const Job& job = entry->job;
    const bool uses = job.request.training_file == id || job.request.validation_file == id;
    if (!uses || IsDone(job.status)) continue;
    throw ApiError(400, fmt::format("the job {} is not done and needs this file", job.id));
  }
  files_.Remove(id);
}

OrderedJson FineTuning::Create(const OrderedJson& body) {
  Job job{.created_at = SecondsSince1970(), .request = ReadJobRequest(body)};
  const JobRequest& request = job.request;
  const ServedModelPtr model = served_.Find(request.model);
  // Before a file is blamed.
  if (!Exists(options_.folder)) throw DiskError(options_.folder.string() + " is gone");
  const bool chats = CheckFile(files_, request.training_file, "training_file", request.method);
  if (!request.validation_file.empty()) {
    CheckFile(files_, request.validation_file, "validation_file", request.method);
  }
  job.base = model->parent.empty() ? model->name : model->parent;
  job.base_fingerprint = options_.base_fingerprint;
  if (!model->parent.empty()) {
    job.adapter = NameWithin(options_.folder, model->folder);
    const std::filesystem::path text = TextTemplateOf(model->folder);
    const bool is_asked_so = chats && !text.empty() && options_.base.chat.chat_template.empty();
    if (is_asked_so) job.chat_template = NameWithin(options_.folder, text);
  }
  const auto lock = jobs_.Lock();
  // One of them may have been deleted meanwhile.
  files_.Get(request.training_file, "training_file");
  if (!request.validation_file.empty()) files_.Get(request.validation_file, "validation_file");
  const JobEntry& entry = jobs_.Add(std::move(job));
  runner_.Wake();
  return ToJson(entry.job);
}

OrderedJson FineTuning::Get(const std::string& id) {
  const auto lock = jobs_.Lock();
  return ToJson(jobs_.Get(id).job);
}

OrderedJson FineTuning::List(const PageQuery& query,
                             const std::map<std::string, std::string>& metadata, bool has_none) {
  const auto lock = jobs_.Lock();
  std::vector<const Job*> found;
  for (const JobEntry* entry : jobs_.All()) {
    const auto& has = entry->job.request.metadata;
    const bool fits = std::ranges::all_of(metadata, [&](const auto& pair) {
      const auto same = has.find(pair.first);
      return same != has.end() && same->second == pair.second;
    });
    if (fits && !(has_none && !has.empty())) found.push_back(&entry->job);
  }
  std::ranges::reverse(found);
  return PageOf({.size = std::ssize(found),
                 .id = [&](std::int64_t i) { return found[i]->id; },
                 .item = [&](std::int64_t i) { return ToJson(*found[i]); }},
                query);
}

OrderedJson FineTuning::Events(const std::string& id, const PageQuery& query) {
  const auto lock = jobs_.Lock();
  return jobs_.Get(id).events.Page(query);
}

OrderedJson FineTuning::Checkpoints(const std::string& id, const PageQuery& query) {
  const auto lock = jobs_.Lock();
  const Job& job = jobs_.Get(id).job;
  const std::int64_t size = std::ssize(job.checkpoints);
  const auto newest = [&](std::int64_t i) -> const JobCheckpoint& {
    return job.checkpoints[size - 1 - i];
  };
  return PageOf({.size = size,
                 .id = [&](std::int64_t i) { return CheckpointId(job, newest(i)); },
                 .item = [&](std::int64_t i) { return ToJson(job, newest(i)); }},
                query);
}

OrderedJson FineTuning::Change(const std::string& id, decltype(&JobRunner::Cancel) change) {
  auto lock = jobs_.Lock();
  JobEntry& entry = jobs_.Get(id);
  const Job before = entry.job;
  try {
    (runner_.*change)(lock, entry);
  } catch (...) {
    // What is refused has not happened.
    entry.job = before;
    throw;
  }
  return ToJson(entry.job);
}

void FineTuning::RemoveModel(const std::string& name) {
  auto lock = jobs_.Lock();
  models_.Remove(lock, name);
}

}  // namespace qlora
