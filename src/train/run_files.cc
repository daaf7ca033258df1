#include "train/run_files.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "train/checkpoint.h"

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
    {"train_log.jsonl", "train_log.csv", "eval_log.jsonl", "eval_log.csv", "samples.jsonl",
     "run_info.json", "train_config.json", "chat_template.jinja", "adapter_config.json",
     "adapter_model.safetensors", "qlora_base.json"});

bool HoldsRun(const fs::path& dir) {
  std::error_code ignored;
  return !ListCheckpoints(dir).empty() ||
         std::any_of(kRunFiles.begin(), kRunFiles.end(),
                     [&](std::string_view name) { return fs::exists(dir / name, ignored); });
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
  for (const std::string_view name : kRunFiles) fs::remove(dir / name, error);
}

}  // namespace qlora
