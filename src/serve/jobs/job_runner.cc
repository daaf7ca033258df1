#include "serve/jobs/job_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/file.h"
#include "base/stopwatch.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/run_info.h"
#include "io/json.h"
#include "serve/api_error.h"
#include "serve/jobs/run_progress.h"
#include "serve/jobs/training_failure.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// Between two tries to write down what a full disk has refused.
constexpr double kRetrySeconds = 10;
constexpr std::chrono::seconds kStopGrace{5};

[[noreturn]] void Refuse(const Job& job, const char* action) {
  throw ApiError(400, fmt::format("the job is {}, and cannot be {}", NameOf(job.status), action));
}

void SetEnd(JobStore& jobs, JobEntry& entry, JobStatus status) {
  entry.job.finished_at = SecondsSince1970();
  const bool is_cancelled = status == JobStatus::kCancelled;
  jobs.SetStatus(entry, status,
                 fmt::format("The job has {}", is_cancelled ? "been cancelled" : NameOf(status)));
}

// The result of the run is there: its process had ended before the server did.
bool IsFinished(const fs::path& run) {
  return Exists(run / kRunInfo) && FinishedStepOf(run).has_value() && HoldsAdapter(run);
}

}  // namespace

JobRunner::JobRunner(const FineTuningOptions& options, JobStore& jobs, FileStore& files,
                     JobModels& models, Trainer trainer)
    : options_(options), jobs_(jobs), files_(files), models_(models), trainer_(std::move(trainer)) {
  TakeUp();
  thread_ = std::thread([this] { Work(); });
}

JobRunner::~JobRunner() {
  BeginStop();
  thread_.join();
}

void JobRunner::BeginStop() {
  models_.Stop();
  {
    const auto lock = jobs_.Lock();
    if (!stops_at_) stops_at_ = std::chrono::steady_clock::now() + options_.stop_time;
  }
  changed_.notify_all();
}

// ---- What clients ask for.

void JobRunner::Cancel(std::unique_lock<std::mutex>& lock, JobEntry& entry) {
  const JobStatus status = entry.job.status;
  if (IsDone(status)) Refuse(entry.job, "cancelled");
  if (status == JobStatus::kQueued || status == JobStatus::kPaused) {
    entry.job.status = JobStatus::kCancelling;  // nothing begins with it meanwhile
    End(lock, entry, JobStatus::kCancelled);
  } else if (status != JobStatus::kCancelling) {
    StopTraining(entry, JobStatus::kCancelling, "The job is being cancelled");
  }
}

void JobRunner::Pause(std::unique_lock<std::mutex>& /*lock*/, JobEntry& entry) {
  const JobStatus status = entry.job.status;
  if (status == JobStatus::kQueued) {
    jobs_.SetStatus(entry, JobStatus::kPaused, "The job is paused");
  } else if (status == JobStatus::kRunning) {
    StopTraining(entry, JobStatus::kPausing, "The job is being paused, with a checkpoint");
  } else if (status != JobStatus::kPausing && status != JobStatus::kPaused) {
    Refuse(entry.job, "paused");
  }
}

// Also where a full disk refuses to keep that: the end of the training is kept later.
void JobRunner::StopTraining(JobEntry& entry, JobStatus status, const char* message) {
  jobs_.Try(entry.job, [&] { jobs_.SetStatus(entry, status, message); });
}

void JobRunner::Resume(std::unique_lock<std::mutex>& /*lock*/, JobEntry& entry) {
  if (entry.job.status != JobStatus::kPaused) Refuse(entry.job, "resumed");
  jobs_.SetStatus(entry, JobStatus::kQueued, "The job is resumed");
  Wake();
}

// ---- The queue.

void JobRunner::TakeUp() {
  auto lock = jobs_.Lock();
  for (JobEntry* entry : jobs_.All()) {
    const Job& job = entry->job;
    jobs_.Try(job, [&] {
      if (job.status == JobStatus::kRunning) {
        jobs_.SetStatus(*entry, JobStatus::kQueued, "The server was started anew: the job goes on");
      } else if (job.status == JobStatus::kPausing) {
        jobs_.SetStatus(*entry, JobStatus::kPaused, "The job is paused");
      } else if (job.status == JobStatus::kCancelling) {
        SetEnd(jobs_, *entry, JobStatus::kCancelled);
      }
      FindCheckpoints(jobs_, *entry, options_.folder / job.id);
    });
    if (models_.IsOfServedBase(job)) continue;
    jobs_.Log(job,
              fmt::format("was made for {}, whose weights are not those that are served ({}): {}",
                          job.base, models_.base(),
                          IsDone(job.status) ? "its models are left out" : "the job waits"));
  }
  for (const JobModels::Fault& fault : models_.Serve(lock)) {
    jobs_.Log(jobs_.Get(fault.job_id).job, fault.text);
  }
}

void JobRunner::Work() {
  auto lock = jobs_.Lock();
  while (!stops_at_) {
    JobEntry* next = NextQueued();
    if (next == nullptr) {
      changed_.wait(lock);
      continue;
    }
    try {
      Train(lock, *next);
    } catch (const ApiError& error) {
      FailInside(lock, *next, error);
    } catch (const std::exception& error) {
      FailInside(lock, *next,
                 ApiError(500, "a fault within the server; its log says more", "", "server_error",
                          error.what()));
    }
  }
}

// A full disk may keep the state from being written; the next job begins all the same.
void JobRunner::FailInside(std::unique_lock<std::mutex>& lock, JobEntry& entry,
                           const ApiError& error) {
  if (!lock.owns_lock()) lock.lock();
  jobs_.Log(entry.job, error.detail.empty() ? error.message : error.detail);
  // What it is on disk, the next server finds out.
  if (IsDone(entry.job.status) || entry.job.status == JobStatus::kPaused) return;
  entry.job.status = JobStatus::kFailed;
  jobs_.Try(entry.job, [&] { Fail(lock, entry, {.code = error.code, .message = error.message}); });
}

JobEntry* JobRunner::NextQueued() {
  for (JobEntry* entry : jobs_.All()) {
    const Job& job = entry->job;
    if (job.status == JobStatus::kQueued && models_.IsOfServedBase(job)) return entry;
  }
  return nullptr;
}

// ---- A training.

void JobRunner::Train(std::unique_lock<std::mutex>& lock, JobEntry& entry) {
  const std::optional<TrainingTask> task = OnDisk([&] { return Begin(lock, entry); });
  if (!task) return;
  JobWatch watch(jobs_, entry, *task);
  std::optional<Stopwatch> since_fault;
  lock.unlock();
  const TrainingEnd end = trainer_(*task, [&] {
    const auto watching = jobs_.Lock();
    if (!since_fault || since_fault->seconds() > kRetrySeconds) {
      since_fault.reset();
      if (!jobs_.Try(entry.job, [&] { watch.Follow(); })) since_fault.emplace();
    }
    return StopOf(entry.job);
  });
  lock.lock();
  jobs_.Try(entry.job, [&] { watch.Follow(); });
  OnDisk([&] { Finish(lock, entry, end); });
}

std::optional<TrainingTask> JobRunner::Begin(std::unique_lock<std::mutex>& lock, JobEntry& entry) {
  jobs_.SetStatus(entry, JobStatus::kRunning, "Fine-tuning job started");
  if (IsFinished(options_.folder / entry.job.id)) {
    Succeed(lock, entry);
    return std::nullopt;
  }
  if (const std::optional<JobError> missing = MissingPart(entry.job)) {
    Fail(lock, entry, *missing);
    return std::nullopt;
  }
  return MakeTask(entry.job);
}

std::optional<JobError> JobRunner::MissingPart(const Job& job) const {
  const std::pair<const char*, std::string> named[] = {
      {"training_file", job.request.training_file},
      {"validation_file", job.request.validation_file}};
  for (const auto& [field, id] : named) {
    if (id.empty() || (files_.Find(id) && Exists(files_.PathOf({.id = id})))) continue;
    return JobError{.code = fmt::format("invalid_{}", field),
                    .message = fmt::format("{} {} is no longer there; upload the file again, and "
                                           "create a new job",
                                           field, id),
                    .param = field};
  }
  if (job.adapter.empty() || Exists(options_.folder / job.adapter)) return std::nullopt;
  return JobError{.code = "model_not_found",
                  .message = fmt::format("the adapter of {} is no longer there; create a new job "
                                         "for another model",
                                         job.request.model),
                  .param = "model"};
}

TrainingFiles JobRunner::FilesOf(const Job& job) const {
  const auto name = [&](const std::string& id) {
    if (id.empty()) return id;
    return files_.PathOf({.id = id}).lexically_relative(options_.folder).string();
  };
  return {.training = name(job.request.training_file),
          .validation = name(job.request.validation_file),
          .run = job.id};
}

TrainingTask JobRunner::MakeTask(const Job& job) const {
  const TrainingFiles files = FilesOf(job);
  TrainingTask task{.run = options_.folder / job.id,
                    .output = jobs_.PathOf(job, ".output.json"),
                    .log = jobs_.PathOf(job, ".log")};
  if (CheckpointSteps(task.run).empty()) {
    OrderedJson config = TrainingConfig(job, options_.base, files, options_.context_length);
    // Over what a run has left that ended before its first checkpoint.
    if (Exists(task.run)) config["resume_from_checkpoint"] = "auto";
    const fs::path path = jobs_.PathOf(job, ".config.json");
    WriteTextFile(path, FormatJson(config, 2) + "\n");
    task.arguments = {"train", path.lexically_relative(options_.folder).string()};
  } else {
    // With what its record says, but for the base, which may have been moved.
    task.arguments = {"resume", files.run, "--model_name_or_path", BaseOfTraining(options_.base)};
  }
  task.arguments.push_back("--json");
  if (options_.threads > 0) {
    task.arguments.insert(task.arguments.end(), {"--threads", std::to_string(options_.threads)});
  }
  if (options_.memory_left) {
    const std::int64_t bytes = std::max<std::int64_t>(1, options_.memory_left());
    task.arguments.insert(task.arguments.end(), {"--max_memory", fmt::format("{}B", bytes)});
  }
  return task;
}

StopRequest JobRunner::StopOf(const Job& job) const {
  if (job.status == JobStatus::kCancelling) return StopRequest::kNow;
  if (stops_at_) {
    const bool waits = std::chrono::steady_clock::now() < *stops_at_;
    return waits ? StopRequest::kCheckpoint : StopRequest::kNow;
  }
  return job.status == JobStatus::kPausing ? StopRequest::kCheckpoint : StopRequest::kNone;
}

// ---- The end of a training.

void JobRunner::Finish(std::unique_lock<std::mutex>& lock, JobEntry& entry,
                       const TrainingEnd& end) {
  const Job& job = entry.job;
  const bool was_asked = end.exit_code == kInterruptedExit || end.exit_code == kTerminatedExit;
  if (was_asked && job.status == JobStatus::kRunning) {
    // Who stops the server may send the same signal to its processes, which may end before it.
    changed_.wait_for(lock, kStopGrace, [this] { return stops_at_.has_value(); });
  }
  if (job.status == JobStatus::kCancelling) return End(lock, entry, JobStatus::kCancelled);
  if (end.exit_code == 0) return Succeed(lock, entry);
  const bool is_stopped = was_asked || end.exit_code == kKilledExit;
  // On disk it runs on: the next server takes it up.
  if (is_stopped && stops_at_ && job.status == JobStatus::kRunning) return;
  if (was_asked || (is_stopped && job.status == JobStatus::kPausing)) {
    const bool is_pause = job.status == JobStatus::kPausing;
    return jobs_.SetStatus(
        entry, JobStatus::kPaused,
        is_pause ? "The job is paused" : "A signal has ended the training: the job is paused");
  }
  const auto name_of = [&](const std::string& id) {
    const std::optional<StoredFile> file = files_.Find(id);
    return file ? file->filename : id;
  };
  jobs_.Log(job,
            fmt::format("the training ended with exit code {}: {}", end.exit_code, ErrorOf(end)));
  Fail(lock, entry,
       FailureOf(end, job, FilesOf(job), name_of(job.request.training_file),
                 name_of(job.request.validation_file)));
}

void JobRunner::Succeed(std::unique_lock<std::mutex>& lock, JobEntry& entry) {
  Job& job = entry.job;
  const fs::path run = options_.folder / job.id;
  bool is_whole = jobs_.Try(job, [&] { FindCheckpoints(jobs_, entry, run); });
  is_whole = jobs_.Try(job, [&] { job.trained_tokens = TrainedTokens(run); }) && is_whole;
  const auto add_result = [&] {
    const fs::path csv = files_.NewUpload();
    WriteResultFile(run, csv);
    job.result_file = files_.Add(csv, "step_metrics.csv", kResultPurpose).id;
  };
  is_whole = jobs_.Try(job, add_result) && is_whole;
  if (!is_whole) {
    jobs_.Say(entry, "warn", "The record of the job is not whole: see the server's log");
  }
  jobs_.Say(entry, "info", "New fine-tuned model created: " + job.model());
  End(lock, entry, JobStatus::kSucceeded);
}

void JobRunner::Fail(std::unique_lock<std::mutex>& lock, JobEntry& entry, const JobError& error) {
  entry.job.error = error;
  jobs_.Say(entry, "error", error.message);
  End(lock, entry, JobStatus::kFailed);
}

void JobRunner::End(std::unique_lock<std::mutex>& lock, JobEntry& entry, JobStatus status) {
  Job ended = entry.job;
  ended.status = status;
  if (!ended.checkpoints.empty() || status == JobStatus::kSucceeded) {
    for (const JobModels::Fault& fault : models_.Serve(lock, &ended)) {
      if (fault.job_id == ended.id) jobs_.Say(entry, "warn", fault.text);
    }
  }
  SetEnd(jobs_, entry, status);
}

}  // namespace qlora
