#include "train/run_files.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "base/check.h"
#include "base/file.h"
#include "train/checkpoint.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStepLog = "train_log.jsonl";
constexpr const char* kEvalLog = "eval_log.jsonl";

// What may change between a run and its continuation.
constexpr auto kFreeOptions = std::to_array<std::string_view>(
    {"output_dir", "overwrite_output_dir", "logging_steps", "max_skipped_steps", "save_steps",
     "save_total_limit", "eval_steps", "eval_on_start", "resume_from_checkpoint", "max_memory",
     "threads", "gradient_checkpointing", "recompute"});

// Files that belong to a run.
constexpr auto kRunFiles = std::to_array<const char*>({kStepLog, kEvalLog, "adapter_config.json",
                                                       "adapter_model.safetensors",
                                                       "qlora_base.json", "train_config.json"});

bool HoldsRun(const fs::path& dir) {
  std::error_code ignored;
  return !ListCheckpoints(dir).empty() ||
         std::any_of(kRunFiles.begin(), kRunFiles.end(),
                     [&](const char* name) { return fs::exists(dir / name, ignored); });
}

}  // namespace

Json OptionsToJson(TrainOptions options, bool for_resume) {
  OptionTable table;
  options.Declare(table);
  Json json = Json::object();
  for (const Option& option : table.options()) {
    const bool free =
        std::find(kFreeOptions.begin(), kFreeOptions.end(), option.name) != kFreeOptions.end();
    if (!(for_resume && free)) json[option.name] = option.ToString();
  }
  return json;
}

bool HoldsAdapter(const fs::path& dir) {
  std::error_code ignored;
  return fs::exists(dir / "adapter_model.safetensors", ignored);
}

fs::path ExistingAncestor(fs::path path) {
  std::error_code ignored;
  path = fs::absolute(path);
  while (!fs::exists(path, ignored) && path.has_relative_path()) path = path.parent_path();
  return path;
}

void CheckRunDir(const fs::path& dir, bool overwrite, bool resume) {
  std::error_code ignored;
  if (fs::exists(dir, ignored) && !fs::is_directory(dir, ignored)) {
    ThrowInvalidInput("output_dir {} is a file; choose a directory", dir.string());
  }
  const fs::path ancestor = ExistingAncestor(dir);
  if (!fs::is_directory(ancestor, ignored) || access(ancestor.c_str(), W_OK | X_OK) != 0) {
    ThrowInvalidInput("output_dir {} cannot be made: {} is not a directory that you can write to",
                      dir.string(), ancestor.string());
  }
  if (!overwrite && !resume && HoldsRun(dir)) {
    ThrowInvalidInput(
        "output_dir {} already holds a run; choose another, or give --overwrite-output-dir to "
        "replace it, or --resume-from-checkpoint auto to go on",
        dir.string());
  }
}

void PrepareRunDir(const fs::path& dir, bool overwrite) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) ThrowInvalidInput("output_dir {} cannot be made: {}", dir.string(), error.message());
  RemoveUnfinishedCheckpoints(dir);
  if (!overwrite) return;
  RemoveOldCheckpoints(dir, 0);
  for (const char* name : kRunFiles) fs::remove(dir / name, error);
}

TrainLog::TrainLog(const fs::path& dir, std::int64_t step)
    : steps_(Open(dir / kStepLog, step)), evals_(Open(dir / kEvalLog, step)) {}

TrainLog::LineFile TrainLog::Open(const fs::path& path, std::int64_t step) {
  if (step > 0 && fs::exists(path)) {
    std::istringstream lines(ReadTextFile(path));
    std::string kept;
    for (std::string line; std::getline(lines, line);) {
      const Json json = Json::parse(line, nullptr, false);
      if (json.is_object() && json.value("step", std::int64_t{0}) <= step) kept += line + "\n";
    }
    WriteTextFile(path, kept);
  }
  LineFile out{path,
               std::unique_ptr<std::FILE, Close>(std::fopen(path.c_str(), step > 0 ? "a" : "w"))};
  if (out.file == nullptr) ThrowRuntime("cannot write {}: {}", path.string(), std::strerror(errno));
  return out;
}

void TrainLog::WriteLine(const LineFile& out, const Json& line) {
  const std::string text = line.dump() + "\n";
  if (std::fputs(text.c_str(), out.file.get()) < 0 || std::fflush(out.file.get()) != 0) {
    ThrowRuntime("cannot write {}: {}", out.path.string(), std::strerror(errno));
  }
}

void TrainLog::Write(const StepReport& r) {
  WriteLine(steps_, {{"step", r.step},
                     {"epoch", r.epoch},
                     {"loss", r.loss},
                     {"grad_norm", r.grad_norm},
                     {"learning_rate", r.learning_rate},
                     {"tokens", r.tokens},
                     {"tokens_per_second", r.tokens_per_second},
                     {"memory", r.memory_bytes},
                     {"elapsed", r.elapsed_seconds},
                     {"token_accuracy", r.token_accuracy},
                     {"skipped", r.skipped},
                     {"spike", r.spike}});
}

void TrainLog::Write(std::int64_t step, const EvalReport& r) {
  WriteLine(evals_, {{"step", step},
                     {"eval_loss", r.loss},
                     {"eval_perplexity", r.perplexity},
                     {"eval_token_accuracy", r.token_accuracy},
                     {"eval_best", r.best},
                     {"eval_tokens", r.tokens},
                     {"eval_runtime", r.seconds}});
}

}  // namespace qlora
