#include "serve/jobs/job_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/text.h"
#include "checkpoint/checkpoint_folders.h"
#include "serve/api_error.h"

namespace qlora {
namespace {

constexpr std::string_view kModelPrefix = "ft:";

bool HasModel(const Job& job, const std::string& name) {
  if (job.IsDeleted(name)) return false;
  if (job.status == JobStatus::kSucceeded && job.model() == name) return true;
  return std::ranges::any_of(job.checkpoints, [&](const JobCheckpoint& checkpoint) {
    return job.CheckpointModel(checkpoint) == name;
  });
}

}  // namespace

JobModels::JobModels(std::filesystem::path folder, std::string base_fingerprint, JobStore& jobs,
                     ServedModels& models)
    : folder_(std::move(folder)),
      base_fingerprint_(std::move(base_fingerprint)),
      jobs_(jobs),
      models_(models) {}

bool JobModels::IsOfServedBase(const Job& job) const {
  if (job.base_fingerprint.empty()) return job.base == base();
  return job.base_fingerprint == base_fingerprint_;
}

void JobModels::Remove(std::unique_lock<std::mutex>& lock, const std::string& name) {
  if (!name.starts_with(kModelPrefix)) {
    models_.Find(name);
    throw ApiError(400,
                   fmt::format("only models of fine-tuning jobs can be deleted, whose names "
                               "begin with {}",
                               kModelPrefix),
                   "model");
  }
  for (JobEntry* entry : jobs_.All()) {
    Job& job = entry->job;
    if (!HasModel(job, name)) continue;
    job.deleted_models.push_back(name);
    try {
      jobs_.Save(job);
    } catch (...) {
      job.deleted_models.pop_back();
      throw;
    }
    if (Unload(name)) Serve(lock);
    return;
  }
  throw ApiError(404, fmt::format("the model '{}' does not exist", name), "model",
                 "model_not_found");
}

std::vector<JobModels::JobModel> JobModels::All(const Job* ended) {
  std::vector<JobModel> whole;
  std::vector<JobModel> checkpoints;
  std::vector<JobEntry*> entries = jobs_.All();
  std::ranges::reverse(entries);
  for (const JobEntry* entry : entries) {
    const Job& job = ended != nullptr && ended->id == entry->job.id ? *ended : entry->job;
    if (!IsDone(job.status) || !IsOfServedBase(job)) continue;
    const std::filesystem::path run = folder_ / job.id;
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

std::vector<JobModels::Fault> JobModels::Serve(std::unique_lock<std::mutex>& lock,
                                               const Job* ended) {
  const std::vector<JobModel> all = All(ended);
  lock.unlock();
  std::vector<Fault> faults = LoadAll(all, ended);
  lock.lock();
  for (const JobModel& model : all) {
    // While it was loaded.
    if (jobs_.Get(model.job_id).job.IsDeleted(model.name)) Unload(model.name);
  }
  return faults;
}

std::vector<JobModels::Fault> JobModels::LoadAll(const std::vector<JobModel>& all,
                                                 const Job* ended) {
  std::vector<Fault> faults;
  const std::lock_guard loading(loading_);
  bool is_full[] = {false, false};  // for whole runs, and for checkpoints
  for (const JobModel& model : all) {
    if (stops_) break;
    if (IsServed(model.name)) continue;
    std::string fault = "there is no room for it; delete models of jobs, or give more memory";
    try {
      if (!is_full[model.is_checkpoint]) {
        const bool is_new = ended != nullptr && model.job_id == ended->id;
        Load(model, is_new ? all : std::vector<JobModel>());
        continue;
      }
    } catch (const ApiError& error) {
      fault = error.message;
      is_full[model.is_checkpoint] = error.code == kNoRoom;
    } catch (const std::exception& error) {
      fault = error.what();
    }
    // Clients know no folders.
    fault = ReplaceAll(fault, model.folder.string() + ": ", "");
    faults.push_back(
        {model.job_id, fmt::format("the model {} is not served: {}", model.name, fault)});
  }
  return faults;
}

void JobModels::Load(const JobModel& model, const std::vector<JobModel>& others) {
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

bool JobModels::IsServed(const std::string& name) const {
  return std::ranges::any_of(models_.All(),
                             [&](const ServedModelPtr& model) { return model->name == name; });
}

bool JobModels::Unload(const std::string& name) {
  try {
    models_.Unload(name);
    return true;
  } catch (const ApiError&) {
    return false;
  }
}

}  // namespace qlora
