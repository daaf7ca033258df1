// What clients ask for; job_runner.cc has the thread that runs the jobs.
#include "serve/jobs/fine_tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/file.h"
#include "checkpoint/checkpoint_folders.h"
#include "io/json.h"
#include "qlora/error.h"
#include "serve/api_error.h"
#include "serve/jobs/new_id.h"

namespace qlora {
namespace {

constexpr std::string_view kModelPrefix = "ft:";

[[noreturn]] void Refuse(const Job& job, const char* action) {
  throw ApiError(400, fmt::format("the job is {}, and cannot be {}", NameOf(job.status), action));
}

// Names of files that are not there are wrong fields of the request.
StoredFile NamedFile(const FileStore& files, const std::string& id, const char* field) {
  StoredFile file = files.Get(id, field);
  if (!Exists(files.PathOf(file))) throw DiskError(files.PathOf(file).string() + " is gone");
  if (file.purpose == kTrainingPurpose) return file;
  throw ApiError(400,
                 fmt::format("{}: expected a file of purpose {}, found {}", field, kTrainingPurpose,
                             file.purpose),
                 field);
}

void CheckFile(const FileStore& files, const std::string& id, const char* field,
               TrainingMethod method) {
  const StoredFile file = NamedFile(files, id, field);
  try {
    CheckTrainingFile(files.PathOf(file), file.filename, method);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidInput) throw;
    throw ApiError(400, fmt::format("{}: {}", field, error.what()), field, "invalid_training_file");
  }
}

bool HasModel(const Job& job, const std::string& name) {
  if (job.IsDeleted(name)) return false;
  if (job.status == JobStatus::kSucceeded && job.model() == name) return true;
  return std::ranges::any_of(job.checkpoints, [&](const JobCheckpoint& checkpoint) {
    return job.CheckpointModel(checkpoint) == name;
  });
}

}  // namespace

FineTuning::FineTuning(FineTuningOptions options, ServedModels& models, Trainer trainer,
                       std::function<void(const std::string& line)> log)
    : options_(std::move(options)),
      models_(models),
      trainer_(std::move(trainer)),
      log_(std::move(log)),
      files_(options_.folder / "files"),
      jobs_(options_.folder / "jobs") {
  for (const std::string& note : files_.notes()) log_(note);
  for (const std::string& note : jobs_.notes()) log_(note);
  TakeUp();
  thread_ = std::thread([this] { Work(); });
}

FineTuning::~FineTuning() {
  BeginStop();
  thread_.join();
}

void FineTuning::BeginStop() {
  {
    const std::lock_guard lock(mutex_);
    if (!stops_at_) stops_at_ = std::chrono::steady_clock::now() + options_.stop_time;
  }
  changed_.notify_all();
}

std::optional<HttpBody> FineTuning::BodyOf(const HttpRequest& head) const {
  constexpr std::int64_t kFormBytes = 1 << 16;  // around the file
  if (head.method != "POST" || head.path != "/v1/files") return std::nullopt;
  return HttpBody{.limit = static_cast<std::size_t>(options_.file_bytes + kFormBytes),
                  .file = files_.NewUpload().string()};
}

void FineTuning::RemoveFile(const std::string& id) {
  const std::lock_guard lock(mutex_);
  for (const JobEntry* entry : jobs_.All()) {
    const Job& job = entry->job;
    const bool uses = job.request.training_file == id || job.request.validation_file == id;
    if (!uses || IsDone(job.status)) continue;
    throw ApiError(400, fmt::format("the job {} is not done and needs this file", job.id));
  }
  files_.Remove(id);
}

OrderedJson FineTuning::Create(const OrderedJson& body) {
  Job job{.created_at = SecondsNow(), .request = ReadJobRequest(body)};
  const JobRequest& request = job.request;
  const ServedModelPtr model = models_.Find(request.model);
  job.base = model->parent.empty() ? model->name : model->parent;
  job.base_fingerprint = options_.base_fingerprint;
  if (model->adapter) job.adapter = model->folder;
  CheckFile(files_, request.training_file, "training_file", request.method);
  if (!request.validation_file.empty()) {
    CheckFile(files_, request.validation_file, "validation_file", request.method);
  }
  const std::lock_guard lock(mutex_);
  // One of them may have been deleted meanwhile.
  files_.Get(request.training_file, "training_file");
  if (!request.validation_file.empty()) files_.Get(request.validation_file, "validation_file");
  JobEntry& entry = jobs_.Add(std::move(job));
  changed_.notify_all();
  return ToJson(entry.job);
}

OrderedJson FineTuning::Get(const std::string& id) {
  const std::lock_guard lock(mutex_);
  return ToJson(jobs_.Get(id).job);
}

OrderedJson FineTuning::List(const PageQuery& query,
                             const std::map<std::string, std::string>& metadata) {
  const std::lock_guard lock(mutex_);
  std::vector<const Job*> found;
  for (const JobEntry* entry : jobs_.All()) {
    const auto& has = entry->job.request.metadata;
    const bool fits = std::ranges::all_of(metadata, [&](const auto& pair) {
      const auto same = has.find(pair.first);
      return same != has.end() && same->second == pair.second;
    });
    if (fits) found.push_back(&entry->job);
  }
  std::ranges::reverse(found);
  return PageOf({.size = std::ssize(found),
                 .id = [&](std::int64_t i) { return found[i]->id; },
                 .item = [&](std::int64_t i) { return ToJson(*found[i]); }},
                query);
}

OrderedJson FineTuning::Events(const std::string& id, const PageQuery& query) {
  const std::lock_guard lock(mutex_);
  return jobs_.Get(id).events.Page(query);
}

OrderedJson FineTuning::Checkpoints(const std::string& id, const PageQuery& query) {
  const std::lock_guard lock(mutex_);
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

OrderedJson FineTuning::Cancel(const std::string& id) {
  std::unique_lock lock(mutex_);
  JobEntry& entry = jobs_.Get(id);
  const JobStatus status = entry.job.status;
  if (IsDone(status)) Refuse(entry.job, "cancelled");
  if (status == JobStatus::kQueued || status == JobStatus::kPaused) {
    if (entry.job.checkpoints.empty()) {
      SetEnd(entry, JobStatus::kCancelled);
    } else {
      entry.job.status = JobStatus::kCancelling;  // nothing begins with it meanwhile
      End(lock, entry, JobStatus::kCancelled);
    }
  } else if (status != JobStatus::kCancelling) {
    SetStatus(entry, JobStatus::kCancelling, "The job is being cancelled");
  }
  return ToJson(entry.job);
}

OrderedJson FineTuning::Pause(const std::string& id) {
  const std::lock_guard lock(mutex_);
  JobEntry& entry = jobs_.Get(id);
  if (entry.job.status == JobStatus::kQueued) {
    SetStatus(entry, JobStatus::kPaused, "The job is paused");
  } else if (entry.job.status == JobStatus::kRunning) {
    SetStatus(entry, JobStatus::kPausing, "The job is being paused, with a checkpoint");
  } else if (entry.job.status != JobStatus::kPausing && entry.job.status != JobStatus::kPaused) {
    Refuse(entry.job, "paused");
  }
  return ToJson(entry.job);
}

OrderedJson FineTuning::Resume(const std::string& id) {
  const std::lock_guard lock(mutex_);
  JobEntry& entry = jobs_.Get(id);
  if (entry.job.status != JobStatus::kPaused) Refuse(entry.job, "resumed");
  SetStatus(entry, JobStatus::kQueued, "The job is resumed");
  changed_.notify_all();
  return ToJson(entry.job);
}

void FineTuning::RemoveModel(const std::string& name) {
  if (!name.starts_with(kModelPrefix)) {
    models_.Find(name);
    throw ApiError(400,
                   fmt::format("only models of fine-tuning jobs can be deleted, whose names "
                               "begin with {}",
                               kModelPrefix),
                   "model");
  }
  std::unique_lock lock(mutex_);
  for (JobEntry* entry : jobs_.All()) {
    Job& job = entry->job;
    if (!HasModel(job, name)) continue;
    job.deleted_models.push_back(name);
    jobs_.Save(job);
    // Its room is for those that had none.
    if (Unload(name)) ServeModels(lock, nullptr);
    return;
  }
  throw ApiError(404, fmt::format("the model '{}' does not exist", name), "model",
                 "model_not_found");
}

bool FineTuning::Unload(const std::string& name) {
  try {
    models_.Unload(name);
    return true;
  } catch (const ApiError&) {
    return false;
  }
}

bool FineTuning::IsOfServedBase(const Job& job) const {
  if (job.base_fingerprint.empty()) return job.base == models_.Find("")->name;
  return job.base_fingerprint == options_.base_fingerprint;
}

std::vector<FineTuning::JobModel> FineTuning::ModelsOfJobs(const Job* ended) {
  std::vector<JobModel> whole;
  std::vector<JobModel> checkpoints;
  std::vector<JobEntry*> entries = jobs_.All();
  std::ranges::reverse(entries);
  for (const JobEntry* entry : entries) {
    const Job& job = ended != nullptr && ended->id == entry->job.id ? *ended : entry->job;
    if (!IsDone(job.status) || !IsOfServedBase(job)) continue;
    const std::filesystem::path run = FilesOf(job).run;
    if (job.status == JobStatus::kSucceeded && !job.IsDeleted(job.model())) {
      whole.push_back({job.id, job.model(), run, false});
    }
    for (auto at = job.checkpoints.rbegin(); at != job.checkpoints.rend(); ++at) {
      const std::string name = job.CheckpointModel(*at);
      if (job.IsDeleted(name)) continue;
      checkpoints.push_back({job.id, name, CheckpointDir(run, at->step), true});
    }
  }
  whole.insert(whole.end(), checkpoints.begin(), checkpoints.end());
  return whole;
}

std::vector<FineTuning::ModelFault> FineTuning::ServeModels(std::unique_lock<std::mutex>& lock,
                                                            const Job* ended) {
  std::vector<ModelFault> faults;
  if (stops_at_) return faults;
  const std::vector<JobModel> all = ModelsOfJobs(ended);
  struct Unlocked {
    explicit Unlocked(std::unique_lock<std::mutex>& l) : lock(l) { lock.unlock(); }
    ~Unlocked() { lock.lock(); }
    std::unique_lock<std::mutex>& lock;
  };
  {
    const Unlocked unlocked(lock);
    const std::lock_guard loading(loading_);
    const auto stops = [this] {
      const std::lock_guard asking(mutex_);
      return stops_at_.has_value();
    };
    const auto is_served = [&](const std::string& name) {
      return std::ranges::any_of(models_.All(),
                                 [&](const ServedModelPtr& model) { return model->name == name; });
    };
    bool is_full[] = {false, false};  // for whole runs, and for checkpoints
    for (const JobModel& model : all) {
      if (stops()) break;
      if (is_served(model.name)) continue;
      std::string fault = "there is no room for it; delete models of jobs, or give more memory";
      try {
        if (!is_full[model.is_checkpoint]) {
          const bool is_new = ended != nullptr && model.job_id == ended->id;
          LoadModel(model, is_new ? all : std::vector<JobModel>());
          continue;
        }
      } catch (const ApiError& error) {
        fault = error.message;
        is_full[model.is_checkpoint] = error.code == kNoRoom;
      } catch (const std::exception& error) {
        fault = error.what();
      }
      faults.push_back(
          {model.job_id, fmt::format("the model {} is not served: {}", model.name, fault)});
    }
  }
  for (const JobModel& model : all) {
    // While it was loaded.
    if (jobs_.Get(model.job_id).job.IsDeleted(model.name)) Unload(model.name);
  }
  return faults;
}

void FineTuning::LoadModel(const JobModel& model, const std::vector<JobModel>& others) {
  for (auto spare = others.rbegin();; ++spare) {
    try {
      return models_.Load(model.name, model.folder.string());
    } catch (const ApiError& error) {
      if (error.code != kNoRoom || model.is_checkpoint) throw;
      while (spare != others.rend() && !(spare->is_checkpoint && Unload(spare->name))) ++spare;
      if (spare == others.rend()) throw;
    }
  }
}

}  // namespace qlora
