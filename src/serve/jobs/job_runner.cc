// The thread of FineTuning: one job after another, from its process to its models.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/run_info.h"
#include "io/json.h"
#include "log/log_files.h"
#include "serve/jobs/fine_tuning.h"
#include "serve/jobs/new_id.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// Events of steps that a job has at most, about; of longer runs, every n-th step has one.
constexpr std::int64_t kMostMetrics = 10'000;
constexpr int kInterruptedExit = 130;
constexpr int kTerminatedExit = 143;  // by SIGTERM, before the program has read its options
constexpr int kKilledExit = 137;

fs::path LogOf(const fs::path& run, const char* name) {
  return run / (std::string(name) + ".jsonl");
}

bool IsStopped(int exit_code) {
  return exit_code == kInterruptedExit || exit_code == kTerminatedExit || exit_code == kKilledExit;
}

// The error of `qlora train --json`.
std::string ErrorIn(const std::string& output) {
  Json result;
  if (TryParseJson(output, result) || !result.is_object()) return "";
  const auto error = result.find("error");
  return error != result.end() && error->is_string() ? error->get<std::string>() : "";
}

// The process was ended by SIGKILL, which nobody here sent.
constexpr const char* kKilledMessage =
    "the system ended the training (SIGKILL), most likely for want of memory: free some, or lower "
    "--max_memory; the checkpoints of the job, where it has some, are served";

std::string CodeOf(int exit_code) {
  if (exit_code == static_cast<int>(ErrorCode::kInvalidInput)) return "invalid_training_file";
  const bool is_memory =
      exit_code == static_cast<int>(ErrorCode::kOutOfMemory) || exit_code == kKilledExit;
  if (is_memory) return "insufficient_memory";
  return "training_failed";
}

// The result of the run is there: its process had ended before the server did.
bool IsFinished(const fs::path& run) {
  return Exists(run / kRunInfo) && FinishedStepOf(run).has_value() && HoldsAdapter(run);
}

}  // namespace

void FineTuning::TakeUp() {
  std::unique_lock lock(mutex_);
  for (JobEntry* entry : jobs_.All()) {
    const JobStatus status = entry->job.status;
    if (status == JobStatus::kRunning) {
      SetStatus(*entry, JobStatus::kQueued, "The server was started anew: the job goes on");
    } else if (status == JobStatus::kPausing) {
      SetStatus(*entry, JobStatus::kPaused, "The job is paused");
    } else if (status == JobStatus::kCancelling) {
      SetEnd(*entry, JobStatus::kCancelled);
    }
    FindCheckpoints(*entry);
    if (IsOfServedBase(entry->job)) continue;
    log_(fmt::format("{}: was made for {}, whose weights are not those that are served ({}): {}",
                     entry->job.id, entry->job.base, models_.Find("")->name,
                     IsDone(entry->job.status) ? "its models are left out" : "the job waits"));
  }
  for (const ModelFault& fault : ServeModels(lock, nullptr)) log_(fault.text);
}

void FineTuning::Work() {
  std::unique_lock lock(mutex_);
  while (!stops_at_) {
    JobEntry* next = NextQueued();
    if (next == nullptr) {
      changed_.wait(lock);
      continue;
    }
    try {
      Train(lock, *next);
    } catch (const std::exception& error) {
      if (!lock.owns_lock()) lock.lock();
      FailInside(lock, *next, error.what());
    }
  }
}

// A full disk may keep the state from being written; the next job begins all the same.
void FineTuning::FailInside(std::unique_lock<std::mutex>& lock, JobEntry& entry,
                            const std::string& reason) {
  log_(fmt::format("{}: {}", entry.job.id, reason));
  // What it is on disk, the next server finds out.
  if (IsDone(entry.job.status)) return;
  entry.job.status = JobStatus::kFailed;
  Try(entry.job, [&] {
    Fail(lock, entry,
         {.code = "server_error", .message = "a fault within the server; see its log"});
  });
}

bool FineTuning::Try(const Job& job, const std::function<void()>& work) const {
  try {
    work();
    return true;
  } catch (const std::exception& error) {
    log_(fmt::format("{}: {}", job.id, error.what()));
    return false;
  }
}

JobEntry* FineTuning::NextQueued() {
  for (JobEntry* entry : jobs_.All()) {
    if (entry->job.status == JobStatus::kQueued && IsOfServedBase(entry->job)) return entry;
  }
  return nullptr;
}

void FineTuning::Train(std::unique_lock<std::mutex>& lock, JobEntry& entry) {
  Job& job = entry.job;
  const fs::path run = FilesOf(job).run;
  SetStatus(entry, JobStatus::kRunning, "Fine-tuning job started");
  if (IsFinished(run)) return Succeed(lock, entry);
  if (const std::optional<JobError> missing = MissingFile(job)) return Fail(lock, entry, *missing);
  const TrainingTask task = MakeTask(job);
  Watched watched{.log = LogFollower(LogOf(run, kStepLog))};
  lock.unlock();
  const TrainingEnd end = trainer_(task, [&] {
    const std::lock_guard watching(mutex_);
    Try(job, [&] { Follow(entry, watched); });
    return StopOf(job);
  });
  lock.lock();
  Try(job, [&] { Follow(entry, watched); });
  Finish(lock, entry, end);
}

std::optional<JobError> FineTuning::MissingFile(const Job& job) const {
  const std::pair<const char*, std::string> named[] = {
      {"training_file", job.request.training_file},
      {"validation_file", job.request.validation_file}};
  for (const auto& [field, id] : named) {
    if (id.empty() || files_.Find(id)) continue;
    return JobError{.code = "invalid_training_file",
                    .message = fmt::format("{} {} is no longer there; upload the file again, and "
                                           "create a new job",
                                           field, id),
                    .param = field};
  }
  return std::nullopt;
}

TrainingFiles FineTuning::FilesOf(const Job& job) const {
  const auto path = [&](const std::string& id) {
    return id.empty() ? fs::path() : files_.PathOf({.id = id});
  };
  return {.training = path(job.request.training_file),
          .validation = path(job.request.validation_file),
          .run = options_.folder / job.id};
}

TrainingTask FineTuning::MakeTask(const Job& job) {
  const TrainingFiles files = FilesOf(job);
  TrainingTask task{.run = files.run,
                    .output = jobs_.PathOf(job, ".output.json"),
                    .log = jobs_.PathOf(job, ".log")};
  if (Exists(files.run / kTrainConfig)) {
    task.arguments = {"resume", files.run.string()};
  } else {
    const fs::path config = jobs_.PathOf(job, ".config.json");
    WriteTextFile(config, FormatJson(TrainingConfig(job, options_.base, files), 2) + "\n");
    task.arguments = {"train", config.string()};
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

void FineTuning::Follow(JobEntry& entry, Watched& watched) {
  watched.log.Read([&](const Json& line) { AddMetrics(entry, watched, line); });
  FindCheckpoints(entry);
}

void FineTuning::AddMetrics(JobEntry& entry, Watched& watched, const Json& line) {
  const auto step = line.at("step").get<std::int64_t>();
  // What a run makes again after its last checkpoint has the same values.
  if (step <= entry.events.last_step()) return;
  if (watched.every == 0) {
    watched.total = TotalSteps(FilesOf(entry.job).run);
    watched.every = std::max<std::int64_t>(1, watched.total / kMostMetrics);
  }
  const auto loss = NumberIn(line, "loss");
  if (!loss || (step % watched.every != 0 && step != 1 && step != watched.total)) return;
  OrderedJson data = {{"step", step}, {"total_steps", watched.total}, {"train_loss", *loss}};
  if (const auto accuracy = NumberIn(line, "token_accuracy")) {
    data["train_mean_token_accuracy"] = *accuracy;
  }
  for (const char* key : {"rewards/accuracies", "rewards/margins"}) {
    if (const auto value = NumberIn(line, key)) data[key] = *value;
  }
  entry.events.AddMetrics(
      fmt::format("Step {}/{}: training loss={:.4f}", step, watched.total, *loss), data);
}

void FineTuning::FindCheckpoints(JobEntry& entry) {
  Job& job = entry.job;
  const fs::path run = FilesOf(job).run;
  std::vector<JobCheckpoint> found;
  bool changed = false;
  for (const std::int64_t step : CheckpointSteps(run)) {
    const auto known = std::ranges::find(job.checkpoints, step, &JobCheckpoint::step);
    JobCheckpoint& checkpoint = found.emplace_back();
    if (known != job.checkpoints.end()) {
      checkpoint = *known;
    } else {
      checkpoint = {.step = step,
                    .created_at = SecondsNow(),
                    .train_loss = ValueAt(LogOf(run, kStepLog), step, "loss")};
      changed = true;
    }
    if (!checkpoint.valid_loss && !job.request.validation_file.empty()) {
      checkpoint.valid_loss = ValueAt(LogOf(run, kEvalLog), step, "eval_loss");
      changed = changed || checkpoint.valid_loss;
    }
  }
  changed = changed || found.size() != job.checkpoints.size();
  if (!changed) return;
  job.checkpoints = std::move(found);
  jobs_.Save(job);
}

StopRequest FineTuning::StopOf(const Job& job) const {
  if (job.status == JobStatus::kCancelling) return StopRequest::kNow;
  if (stops_at_) {
    const bool waits = std::chrono::steady_clock::now() < *stops_at_;
    return waits ? StopRequest::kCheckpoint : StopRequest::kNow;
  }
  return job.status == JobStatus::kPausing ? StopRequest::kCheckpoint : StopRequest::kNone;
}

void FineTuning::Finish(std::unique_lock<std::mutex>& lock, JobEntry& entry,
                        const TrainingEnd& end) {
  Job& job = entry.job;
  if (job.status == JobStatus::kCancelling) return End(lock, entry, JobStatus::kCancelled);
  if (end.exit_code == 0) return Succeed(lock, entry);
  if (IsStopped(end.exit_code) && job.status == JobStatus::kPausing) {
    return SetStatus(entry, JobStatus::kPaused, "The job is paused");
  }
  // On disk it runs on: the next server takes it up.
  if (IsStopped(end.exit_code) && stops_at_) return;
  const auto name_of = [&](const std::string& id) {
    const std::optional<StoredFile> file = files_.Find(id);
    return file ? file->filename : id;
  };
  std::string message =
      ClientMessage(ErrorIn(end.output), FilesOf(job), name_of(job.request.training_file),
                    name_of(job.request.validation_file));
  if (message.empty() && end.exit_code == kKilledExit) message = kKilledMessage;
  if (message.empty()) {
    message = fmt::format(
        "the training ended with exit code {}; the log of the job, {}.log, says "
        "more",
        end.exit_code, job.id);
  }
  Fail(lock, entry, {.code = CodeOf(end.exit_code), .message = std::move(message)});
}

void FineTuning::Succeed(std::unique_lock<std::mutex>& lock, JobEntry& entry) {
  Job& job = entry.job;
  const fs::path run = FilesOf(job).run;
  bool is_whole = Try(job, [&] { FindCheckpoints(entry); });
  is_whole = Try(job, [&] { job.trained_tokens = TrainedTokens(run); }) && is_whole;
  const auto add_result = [&] {
    const fs::path csv = files_.NewUpload();
    WriteResultFile(run, csv);
    job.result_file = files_.Add(csv, "step_metrics.csv", kResultPurpose).id;
  };
  is_whole = Try(job, add_result) && is_whole;
  if (!is_whole) Say(entry, "warn", "The record of the job is not whole: see the server's log");
  Say(entry, "info", "New fine-tuned model created: " + job.model());
  End(lock, entry, JobStatus::kSucceeded);
}

void FineTuning::Fail(std::unique_lock<std::mutex>& lock, JobEntry& entry, const JobError& error) {
  entry.job.error = error;
  Say(entry, "error", error.message);
  End(lock, entry, JobStatus::kFailed);
}

void FineTuning::End(std::unique_lock<std::mutex>& lock, JobEntry& entry, JobStatus status) {
  Job ended = entry.job;
  ended.status = status;
  for (const ModelFault& fault : ServeModels(lock, &ended)) {
    if (fault.job_id == ended.id) Say(entry, "warn", fault.text);
  }
  SetEnd(entry, status);
}

void FineTuning::SetEnd(JobEntry& entry, JobStatus status) {
  entry.job.finished_at = SecondsNow();
  SetStatus(entry, status,
            fmt::format("The job has {}",
                        status == JobStatus::kCancelled ? "been cancelled" : NameOf(status)));
}

void FineTuning::SetStatus(JobEntry& entry, JobStatus status, std::string_view message) {
  entry.job.status = status;
  jobs_.Save(entry.job);
  Say(entry, "info", message);
}

void FineTuning::Say(JobEntry& entry, std::string_view level, std::string_view message) {
  Try(entry.job, [&] { entry.events.Say(level, message); });
}

}  // namespace qlora
