#include "serve/jobs/run_progress.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
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
                       const std::function<void(const std::string& line)>& take) {
  const Stream file(fdopen(OpenRegularFile(path), "r"));
  if (file == nullptr || fseeko(file.get(), offset, SEEK_SET) != 0) return offset;
  std::array<char, std::size_t{1} << 16> chunk;
  std::string line;
  while (const std::size_t count = std::fread(chunk.data(), 1, chunk.size(), file.get())) {
    for (std::string_view rest(chunk.data(), count); !rest.empty();) {
      const std::size_t end = rest.find('\n');
      line += rest.substr(0, end);
      if (end == rest.npos || line.size() > kMaxLineBytes) break;
      offset += std::ssize(line) + 1;
      take(std::exchange(line, ""));
      rest.remove_prefix(end + 1);
    }
    if (line.size() > kMaxLineBytes) return offset;  // no log
  }
  return offset;
}

// Null for a damaged line.
Json ParseLine(const std::string& text) {
  Json line;
  if (TryParseJson(text, line) || !line.is_object()) return nullptr;
  return line;
}

std::optional<std::int64_t> StepIn(const Json& line) {
  const auto step = line.find("step");
  if (step == line.end() || !step->is_number_integer()) return std::nullopt;
  return step->get<std::int64_t>();
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
  offset_ = ReadLines(path_, offset_, [&](const std::string& text) {
    const Json line = ParseLine(text);
    if (line.is_object() && StepIn(line)) take(line);
  });
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
  ReadLines(log, 0, [&](const std::string& text) {
    if (text.find(mark) == text.npos) return;
    const Json line = ParseLine(text);
    if (line.is_object() && StepIn(line) == step) value = NumberIn(line, key);
  });
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
    ReadLines(evals, 0, [&](const std::string& text) {
      Json line = ParseLine(text);
      if (!line.is_object()) return;
      if (const auto step = StepIn(line)) evaluations[*step] = std::move(line);
    });
  }
  AtomicFile out(csv);
  out.Write(
      std::string_view("step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy\n"));
  ReadLines(LogOf(run, kStepLog), 0, [&](const std::string& text) {
    const Json line = ParseLine(text);
    if (!line.is_object() || !StepIn(line)) return;
    const auto evaluation = evaluations.find(*StepIn(line));
    const Json& of_step = evaluation == evaluations.end() ? line : evaluation->second;
    out.Write(fmt::format("{},{},{},{},{}\n", *StepIn(line), Cell(NumberIn(line, "loss")),
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
    printed_bytes_ = ReadLines(printed_, printed_bytes_, [&](const std::string& line) {
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
