#include "train/run_files.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "tokenizer/tokenizer_config.h"
#include "train/checkpoint.h"
#include "train/train_log.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// What may change between a run and its continuation.
constexpr auto kFreeOptions = std::to_array<std::string_view>({"output_dir",
                                                               "overwrite_output_dir",
                                                               "logging_steps",
                                                               "max_skipped_steps",
                                                               "save_steps",
                                                               "save_total_limit",
                                                               "load_best_model_at_end",
                                                               "early_stopping_patience",
                                                               "early_stopping_threshold",
                                                               "report_to",
                                                               "logging_dir",
                                                               "sample_prompts",
                                                               "sample_steps",
                                                               "sample_max_new_tokens",
                                                               "eval_steps",
                                                               "eval_on_start",
                                                               "resume_from_checkpoint",
                                                               "max_memory",
                                                               "threads",
                                                               "gradient_checkpointing",
                                                               "recompute",
                                                               "dataset_prepared_path"});

// Files that belong to a run.
constexpr auto kRunFiles = std::to_array<std::string_view>(
    {kRunInfo, kTrainConfig, kChatTemplateFile, "adapter_config.json", "adapter_model.safetensors",
     "qlora_base.json"});
constexpr auto kLogs = std::to_array<std::string_view>({kStepLog, kEvalLog, kSampleLog});

// Those of the list above, and the logs.
std::vector<fs::path> RunFiles(const fs::path& dir) {
  std::vector<fs::path> files;
  for (const std::string_view name : kRunFiles) files.push_back(dir / name);
  for (const std::string_view name : kLogs) {
    for (const char* ending : {".jsonl", ".csv"})
      files.push_back(dir / (std::string(name) + ending));
  }
  return files;
}

// TensorBoard draws all event files of a folder as one run.
void RemoveEventFiles(const fs::path& dir) {
  std::error_code ignored;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(dir, ignored)) {
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) {
      found.push_back(entry.path());
    }
  }
  for (const fs::path& path : found) fs::remove(path, ignored);
}

bool HoldsRun(const fs::path& dir) {
  std::error_code ignored;
  const std::vector<fs::path> files = RunFiles(dir);
  return !ListCheckpoints(dir).empty() ||
         std::any_of(files.begin(), files.end(),
                     [&](const fs::path& file) { return fs::exists(file, ignored); });
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
  // Some file systems refuse what the permissions allow.
  std::string probe = (ancestor / ".qlora-XXXXXX").string();
  if (mkdtemp(probe.data()) == nullptr) {
    ThrowInvalidInput("output_dir {} cannot be made: nothing can be written to {}: {}",
                      dir.string(), ancestor.string(), std::strerror(errno));
  }
  fs::remove(probe, ignored);
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
  RemoveAllCheckpoints(dir);
  for (const fs::path& file : RunFiles(dir)) fs::remove(file, error);
  TrainOptions old;
  old.output_dir = dir.string();
  RemoveEventFiles(LoggingDir(old));
}

}  // namespace qlora
