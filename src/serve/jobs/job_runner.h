// Runs jobs, one after another, from the queue to their end: what a job becomes, and when.
//
//   queued -> running -> succeeded, failed
//                     -> pausing -> paused -> queued
//   any of these      -> cancelling -> cancelled
//
// Whatever ends the server, the next one on the folder takes the jobs up as the last one left them.
#ifndef QLORA_SERVE_JOBS_JOB_RUNNER_H_
#define QLORA_SERVE_JOBS_JOB_RUNNER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "qlora/model_options.h"
#include "serve/api_error.h"
#include "serve/jobs/file_store.h"
#include "serve/jobs/job_models.h"
#include "serve/jobs/job_store.h"
#include "serve/jobs/trainer.h"
#include "serve/jobs/training_config.h"

namespace qlora {

struct FineTuningOptions {
  std::filesystem::path folder;
  ModelOptions base = {};  // as the server holds it: LoadedModel::BaseOptions
  std::string base_fingerprint = {};
  std::int64_t threads = 0;
  std::int64_t file_bytes = 100'000'000;  // of an uploaded file, at most
  std::int64_t context_length = 2048;     // of the server: longer examples are cut
  // Bytes that the memory plan of the server leaves to a job; null: what is free.
  std::function<std::int64_t()> memory_left = {};
  std::chrono::milliseconds stop_time{8'000};  // for the last checkpoint when the server ends
};

class JobRunner {
 public:
  // Takes up the jobs of a server that has ended. All references must outlive this.
  JobRunner(const FineTuningOptions& options, JobStore& jobs, FileStore& files, JobModels& models,
            Trainer trainer);
  // As BeginStop, and waits for the end of the job.
  ~JobRunner();
  JobRunner(const JobRunner&) = delete;
  JobRunner& operator=(const JobRunner&) = delete;

  // Ends a running job with a checkpoint, for which it has stop_time from the first call on; no
  // further job begins.
  void BeginStop();

  // From here on, lock is that of the jobs; it is held, but while models are loaded.

  // A job was made.
  void Wake() { changed_.notify_all(); }
  // Errors: ApiError 400 for a job whose state does not allow this; Runtime.
  void Cancel(std::unique_lock<std::mutex>& lock, JobEntry& entry);
  void Pause(std::unique_lock<std::mutex>& lock, JobEntry& entry);
  void Resume(std::unique_lock<std::mutex>& lock, JobEntry& entry);

 private:
  void TakeUp();
  void Work();  // the thread, without the lock
  JobEntry* NextQueued();
  void Train(std::unique_lock<std::mutex>& lock, JobEntry& entry);
  // Nothing for a job that has come to its end before its process begins.
  std::optional<TrainingTask> Begin(std::unique_lock<std::mutex>& lock, JobEntry& entry);
  TrainingTask MakeTask(const Job& job) const;
  TrainingFiles FilesOf(const Job& job) const;
  // What a training needs and is gone: a file, or the adapter that it goes on from.
  std::optional<JobError> MissingPart(const Job& job) const;
  void StopTraining(JobEntry& entry, JobStatus status, const char* message);
  StopRequest StopOf(const Job& job) const;
  void Finish(std::unique_lock<std::mutex>& lock, JobEntry& entry, const TrainingEnd& end);
  void Succeed(std::unique_lock<std::mutex>& lock, JobEntry& entry);
  void Fail(std::unique_lock<std::mutex>& lock, JobEntry& entry, const JobError& error);
  void FailInside(std::unique_lock<std::mutex>& lock, JobEntry& entry, const ApiError& error);
  // Serves what the job has made, then says that the job has ended.
  void End(std::unique_lock<std::mutex>& lock, JobEntry& entry, JobStatus status);

  const FineTuningOptions& options_;
  JobStore& jobs_;
  FileStore& files_;
  JobModels& models_;
  const Trainer trainer_;
  std::condition_variable changed_;
  std::optional<std::chrono::steady_clock::time_point> stops_at_ = {};  // the server ends
  std::thread thread_;
};

}  // namespace qlora

#endif  // QLORA_SERVE_JOBS_JOB_RUNNER_H_
