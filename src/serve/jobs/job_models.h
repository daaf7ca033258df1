// The models that jobs have made: which of them are served, and which make room for others.
#ifndef QLORA_SERVE_JOBS_JOB_MODELS_H_
#define QLORA_SERVE_JOBS_JOB_MODELS_H_

#include <atomic>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "serve/jobs/job_store.h"
#include "serve/served_models.h"

namespace qlora {

// May be used by several threads.
class JobModels {
 public:
  // folder: of the runs. base_fingerprint: of the weights that are served. jobs and models must
  // outlive this.
  JobModels(std::filesystem::path folder, std::string base_fingerprint, JobStore& jobs,
            ServedModels& models);

  // The server ends: nothing is loaded from now on.
  void Stop() { stops_ = true; }

  std::string base() const { return models_.Find("")->name; }
  // False for a job of other weights than those that are served.
  bool IsOfServedBase(const Job& job) const;

  struct Fault {
    std::string job_id;
    std::string text;
  };
  // Loads what is not served yet, and has room: whole runs before checkpoints, the newest first.
  // ended: a job as it will be, for whose model those of checkpoints make room; or null. lock: of
  // the jobs, which is not held while models are loaded.
  std::vector<Fault> Serve(std::unique_lock<std::mutex>& lock, const Job* ended = nullptr);

  // Takes a model from those that are served; its files stay, and its room is for those that had
  // none. lock: as of Serve. Errors: ApiError 400 for a model that is not of a job, 404.
  void Remove(std::unique_lock<std::mutex>& lock, const std::string& name);

 private:
  struct JobModel {
    std::string job_id;
    std::string name;
    std::filesystem::path folder;
    bool is_checkpoint;
  };

  // Of all jobs that are done, but for what was deleted, in the order in which they are served.
  std::vector<JobModel> All(const Job* ended);
  std::vector<Fault> LoadAll(const std::vector<JobModel>& all, const Job* ended);
  // Checkpoints of the others make room for a whole run, the oldest first. Errors: ApiError.
  void Load(const JobModel& model, const std::vector<JobModel>& others);
  bool IsServed(const std::string& name) const;
  // False for a model that is not served.
  bool Unload(const std::string& name);

  const std::filesystem::path folder_;
  const std::string base_fingerprint_;
  JobStore& jobs_;
  ServedModels& models_;
  std::mutex loading_;  // one at a time in LoadAll
  std::atomic<bool> stops_ = false;
};

}  // namespace qlora

#endif  // QLORA_SERVE_JOBS_JOB_MODELS_H_
