// Fine-tuning jobs of a server: they wait, run one after another, and become models that it serves.
//
//   page.h, new_id.h        lists in pages; ids that lead nowhere
//   file_store.h            uploaded files, and results
//   training_file_check.h   the first bad line of a file, before a job begins
//   job.h, job_request.cc   what a job is, and the body that asks for one
//   job_store.h             jobs on disk; job_events.h: what happened to one
//   training_config.h       a job as options of `qlora train`
//   trainer.h               a run as a process of its own
//   run_progress.h          what that has written so far
//
// The folder: files/, jobs/, and for each run a folder JOB_ID, as `qlora report` reads it. Whatever
// ends the server, the next one on the folder goes on with its jobs, at their last checkpoints.
#ifndef QLORA_SERVE_JOBS_FINE_TUNING_H_
#define QLORA_SERVE_JOBS_FINE_TUNING_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "io/json_fwd.h"
#include "qlora/model_options.h"
#include "serve/http_server.h"
#include "serve/jobs/file_store.h"
#include "serve/jobs/job_store.h"
#include "serve/jobs/page.h"
#include "serve/jobs/run_progress.h"
#include "serve/jobs/trainer.h"
#include "serve/jobs/training_config.h"
#include "serve/served_models.h"

namespace qlora {

struct FineTuningOptions {
  std::filesystem::path folder;
  ModelOptions base = {};  // as the server holds it: LoadedModel::BaseOptions
  std::string base_fingerprint = {};
  std::int64_t threads = 0;
  std::int64_t file_bytes = 100'000'000;  // of an uploaded file, at most
  // Bytes that the memory plan of the server leaves to a job; null: what is free.
  std::function<std::int64_t()> memory_left = {};
  std::chrono::milliseconds stop_time{8'000};  // for the last checkpoint when the server ends
};

// May be used by several threads. Errors: ApiError 404 for an id that there is not, 400 for what a
// job does not allow in its state, and as of FileStore.
class FineTuning {
 public:
  // Takes what the folder holds, which nobody else may use: models of finished jobs are loaded,
  // jobs that ran go on. What was made for another base waits for a server with that. log: a line
  // for people, from any thread.
  FineTuning(FineTuningOptions options, ServedModels& models, Trainer trainer,
             std::function<void(const std::string& line)> log);
  // As BeginStop, and waits for the end of the job.
  ~FineTuning();
  FineTuning(const FineTuning&) = delete;
  FineTuning& operator=(const FineTuning&) = delete;

  // Ends a running job with a checkpoint, for which it has stop_time from the first call on; no
  // further job begins. They go on when the next server starts.
  void BeginStop();

  // Where the body of a request goes, if it is an upload.
  std::optional<HttpBody> BodyOf(const HttpRequest& head) const;
  FileStore& files() { return files_; }
  std::int64_t file_limit() const { return options_.file_bytes; }
  // Errors: ApiError 400 for a file of a job that is not done.
  void RemoveFile(const std::string& id);

  // body: of POST /v1/fine_tuning/jobs. Errors: ApiError 400 that names the field or the line.
  OrderedJson Create(const OrderedJson& body);
  OrderedJson Get(const std::string& id);
  // metadata: pairs that a job must have.
  OrderedJson List(const PageQuery& query, const std::map<std::string, std::string>& metadata);
  OrderedJson Events(const std::string& id, const PageQuery& query);
  OrderedJson Checkpoints(const std::string& id, const PageQuery& query);
  OrderedJson Cancel(const std::string& id);
  OrderedJson Pause(const std::string& id);
  OrderedJson Resume(const std::string& id);

  // Takes the model of a job, or of its checkpoint, from those that are served; its files stay.
  // Errors: ApiError 400 for a model that is not of a job.
  void RemoveModel(const std::string& name);

 private:
  // A run that is watched.
  struct Watched {
    LogFollower log;
    std::int64_t every = 0;  // steps between two events; 0: not known yet
    std::int64_t total = 0;
  };

  // A model that a job has made.
  struct JobModel {
    std::string job_id;
    std::string name;
    std::filesystem::path folder;
    bool is_checkpoint;
  };
  struct ModelFault {
    std::string job_id;
    std::string text;
  };

  // From here on, the lock is held unless said otherwise.
  void TakeUp();  // jobs of a server that has ended
  void Work();    // the thread, without the lock
  JobEntry* NextQueued();
  void Train(std::unique_lock<std::mutex>& lock, JobEntry& entry);
  TrainingTask MakeTask(const Job& job);
  TrainingFiles FilesOf(const Job& job) const;
  void Follow(JobEntry& entry, Watched& watched);
  void AddMetrics(JobEntry& entry, Watched& watched, const Json& line);
  void FindCheckpoints(JobEntry& entry);
  StopRequest StopOf(const Job& job) const;
  // What is wrong with a job before its process begins: a file that is gone.
  std::optional<JobError> MissingFile(const Job& job) const;
  void Finish(std::unique_lock<std::mutex>& lock, JobEntry& entry, const TrainingEnd& end);
  void Succeed(std::unique_lock<std::mutex>& lock, JobEntry& entry);
  void Fail(std::unique_lock<std::mutex>& lock, JobEntry& entry, const JobError& error);
  void FailInside(std::unique_lock<std::mutex>& lock, JobEntry& entry, const std::string& reason);
  // Serves what the job has made, then says that the job has ended.
  void End(std::unique_lock<std::mutex>& lock, JobEntry& entry, JobStatus status);
  void SetEnd(JobEntry& entry, JobStatus status);
  void SetStatus(JobEntry& entry, JobStatus status, std::string_view message);
  // Records that a full disk may refuse, without harm to the job. False, with a line in the log,
  // for work that throws.
  bool Try(const Job& job, const std::function<void()>& work) const;
  void Say(JobEntry& entry, std::string_view level, std::string_view message);

  bool IsOfServedBase(const Job& job) const;
  // Of all jobs that are done, but for what was deleted: whole runs before checkpoints, the newest
  // first. ended: a job as it will be; or null.
  std::vector<JobModel> ModelsOfJobs(const Job* ended);
  // Loads of these what is not served yet, and has room; models of checkpoints make room for that
  // of the job that has ended. Does not hold the lock meanwhile, and nothing may be loaded when the
  // server ends.
  std::vector<ModelFault> ServeModels(std::unique_lock<std::mutex>& lock, const Job* ended);
  // Without the lock. Checkpoints of the others make room for a whole run, the oldest first.
  // Errors: ApiError.
  void LoadModel(const JobModel& model, const std::vector<JobModel>& others);
  // False for a model that is not served. With or without the lock.
  bool Unload(const std::string& name);

  const FineTuningOptions options_;
  ServedModels& models_;
  const Trainer trainer_;
  const std::function<void(const std::string&)> log_;
  FileStore files_;
  std::mutex loading_;  // one at a time in ServeModels; is taken before the next
  std::mutex mutex_;
  std::condition_variable changed_;
  JobStore jobs_;
  std::optional<std::chrono::steady_clock::time_point> stops_at_ = {};  // the server ends
  std::thread thread_;
};

}  // namespace qlora

#endif  // QLORA_SERVE_JOBS_FINE_TUNING_H_
