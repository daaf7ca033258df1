#include "serve/jobs/run_progress.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "base/stopwatch.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/run_info.h"
#include "io/json.h"
#include "log/log_files.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxLineBytes = std::size_t{1} << 20;

// Events of steps that a job has at most, about; of longer runs, every n-th step has one.
constexpr std::int64_t kMostMetrics = 10'000;

fs::path LogOf(const fs::path& run, const char* name) {
  return run / (std::string(name) + ".jsonl");
}

// Calls take with each whole line from an offset on, and returns the offset behind the last one.
std::int64_t ReadLines(const fs::path& path, std::int64_t offset,
                       const std::function<void(std::string_view line)>& take) {
  ForEachLine(path, offset, kMaxLineBytes, [&](std::string_view line, bool whole) {
    if (!whole) return;
    offset += std::ssize(line) + 1;
    take(line);
  });
  return offset;
}

// The same for the lines of steps, but for those that are damaged or lack `mark`.
std::int64_t ReadSteps(const fs::path& path, std::int64_t offset,
                       const std::function<void(std::int64_t step, Json& line)>& take,
                       std::string_view mark = "") {
  return ReadLines(path, offset, [&](std::string_view text) {
    Json line;
    if (text.find(mark) == text.npos || TryParseJson(text, line) || !line.is_object()) return;
    const auto step = line.find("step");
    if (step != line.end() && step->is_number_integer()) take(step->get<std::int64_t>(), line);
  });
}

std::string Cell(const std::optional<double>& value) {
  return value ? fmt::format("{}", *value) : "";
}

}  // namespace

void LogFollower::Read(const std::function<void(const Json& line)>& take) {
  struct stat info = {};
  if (stat(path_.c_str(), &info) != 0) return;
  if (info.st_ino != inode_ || info.st_size < offset_) offset_ = 0;
  inode_ = info.st_ino;
  if (info.st_size == offset_) return;
  offset_ = ReadSteps(path_, offset_, [&](std::int64_t, const Json& line) { take(line); });
}

std::optional<double> NumberIn(const Json& line, const char* key) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_number()) return std::nullopt;
  const auto value = found->get<double>();
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

std::optional<double> ValueAt(const fs::path& log, std::int64_t step, const char* key) {
  std::optional<double> value;
  if (!Exists(log)) return value;
  // Parsing alone would take seconds for a long run.
  const std::string mark = fmt::format("\"step\":{}", step);
  const auto take = [&](std::int64_t of_line, const Json& line) {
    if (of_line == step) value = NumberIn(line, key);
  };
  ReadSteps(log, 0, take, mark);
  return value;
}

std::int64_t TotalSteps(const fs::path& run) {
  try {
    const Json info = ReadJsonFile(run / kRunInfo);
    return JsonGet<std::int64_t>(info, "total_steps", kRunInfo);
  } catch (const Error&) {  // not written yet
    return 0;
  }
}

std::vector<std::int64_t> CheckpointSteps(const fs::path& run) {
  std::vector<std::int64_t> steps;
  std::error_code ignored;
  if (!fs::is_directory(run, ignored)) return steps;
  for (const fs::path& checkpoint : ListCheckpoints(run)) {
    if (const auto step = StepOfCheckpoint(checkpoint)) steps.push_back(*step);
  }
  return steps;
}

std::optional<std::int64_t> TrainedTokens(const fs::path& run) {
  const std::vector<fs::path> checkpoints = ListCheckpoints(run);
  if (checkpoints.empty()) return std::nullopt;
  const fs::path state = checkpoints.back() / kTrainerState;
  return JsonGet<std::int64_t>(ReadJsonFile(state), "num_tokens", state.string());
}

void WriteResultFile(const fs::path& run, const fs::path& csv) {
  std::map<std::int64_t, Json> evaluations;
  const fs::path evals = LogOf(run, kEvalLog);
  if (Exists(evals)) {
    ReadSteps(evals, 0,
              [&](std::int64_t step, Json& line) { evaluations[step] = std::move(line); });
  }
  AtomicFile out(csv);
  out.Write(
      std::string_view("step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy\n"));
  ReadSteps(LogOf(run, kStepLog), 0, [&](std::int64_t step, const Json& line) {
    const auto evaluation = evaluations.find(step);
    const Json& of_step = evaluation == evaluations.end() ? line : evaluation->second;
    out.Write(fmt::format("{},{},{},{},{}\n", step, Cell(NumberIn(line, "loss")),
                          Cell(NumberIn(line, "token_accuracy")),
                          Cell(NumberIn(of_step, "eval_loss")),
                          Cell(NumberIn(of_step, "eval_token_accuracy"))));
  });
  out.Commit();
}

// ---- The job that is told.

void FindCheckpoints(JobStore& jobs, JobEntry& entry, const fs::path& run) {
  Job& job = entry.job;
  std::vector<JobCheckpoint> found;
  bool changed = false;
  for (const std::int64_t step : CheckpointSteps(run)) {
    const auto known = std::ranges::find(job.checkpoints, step, &JobCheckpoint::step);
    JobCheckpoint& checkpoint = found.emplace_back();
    if (known != job.checkpoints.end()) {
      checkpoint = *known;
    } else {
      checkpoint = {.step = step,
                    .created_at = SecondsSince1970(),
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
  jobs.Save(job);
}

JobWatch::JobWatch(JobStore& jobs, JobEntry& entry, const TrainingTask& task)
    : jobs_(jobs),
      entry_(entry),
      run_(task.run),
      printed_(task.log),
      printed_bytes_(Exists(printed_) ? static_cast<std::int64_t>(fs::file_size(printed_)) : 0),
      log_(LogOf(run_, kStepLog)) {}

void JobWatch::Follow() {
  if (Exists(printed_)) {
    printed_bytes_ = ReadLines(printed_, printed_bytes_, [&](std::string_view line) {
      constexpr std::string_view kWarning = "warning: ";
      if (line.starts_with(kWarning)) jobs_.Say(entry_, "warn", line.substr(kWarning.size()));
    });
  }
  log_.Read([&](const Json& line) { AddMetrics(line); });
  FindCheckpoints(jobs_, entry_, run_);
}

void JobWatch::AddMetrics(const Json& line) {
  const auto step = line.at("step").get<std::int64_t>();
  // What a run makes again after its last checkpoint has the same values.
  if (step <= entry_.events.last_step()) return;
  if (every_ == 0) {
    total_ = TotalSteps(run_);
    every_ = std::max<std::int64_t>(1, total_ / kMostMetrics);
  }
  const auto loss = NumberIn(line, "loss");
  if (!loss || (step % every_ != 0 && step != 1 && step != total_)) return;
  OrderedJson data = {{"step", step}, {"total_steps", total_}, {"train_loss", *loss}};
  if (const auto accuracy = NumberIn(line, "token_accuracy")) {
    data["train_mean_token_accuracy"] = *accuracy;
  }
  for (const char* key : {"rewards/accuracies", "rewards/margins"}) {
    if (const auto value = NumberIn(line, key)) data[key] = *value;
  }
  entry_.events.AddMetrics(fmt::format("Step {}/{}: training loss={:.4f}", step, total_, *loss),
                           data);
}

}  // namespace qlora
