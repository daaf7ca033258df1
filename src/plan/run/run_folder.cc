#include "plan/run/run_folder.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/check.h"
#include "base/file.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/resume_point.h"
#include "checkpoint/retention.h"
#include "checkpoint/run_info.h"
#include "decision/decision_file.h"
#include "io/safetensors.h"
#include "log/run_log.h"
#include "plan/preference_options.h"
#include "preference/reference_table.h"
#include "tokenizer/adapter_files.h"
#include "tokenizer/chat_template_files.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// Files that belong to a run, other than its logs and checkpoints.
constexpr auto kRunFiles = std::to_array<std::string_view>(
    {kRunInfo, kTrainConfig, kChatTemplateFile, "adapter_config.json", "adapter_model.safetensors",
     "qlora_base.json", kDecisionFile, kDecisionMetrics, kReferenceFile, kGateFile, kTaskResults});
constexpr auto kLogs = std::to_array<std::string_view>({kStepLog, kEvalLog, kSampleLog});

// All files that a run may have written directly into its folder, whether they exist or not.
std::vector<fs::path> FilesOfRun(const fs::path& dir) {
  std::vector<fs::path> files;
  for (const std::string_view name : kRunFiles) files.push_back(dir / name);
  for (const std::string_view name : kLogs) {
    for (const char* ending : {".jsonl", ".csv"})
      files.push_back(dir / fmt::format("{}{}", name, ending));
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

// True when anything of a run is in the folder, also of a run that ended before a checkpoint.
bool HoldsRun(const fs::path& dir) {
  std::error_code ignored;
  const std::vector<fs::path> files = FilesOfRun(dir);
  return !ListCheckpoints(dir).empty() ||
         std::any_of(files.begin(), files.end(),
                     [&](const fs::path& file) { return fs::exists(file, ignored); });
}

// The files of a model, and the adapter that a run starts from, are never removed.
void CheckNothingIsLost(const TrainOptions& options) {
  const fs::path dir = WithoutLinks(options.output_dir);
  if (HoldsModel(options.output_dir) || HoldsModel(dir)) {
    ThrowInvalidInput("output_dir {} holds a model; choose another directory", options.output_dir);
  }
  const auto reference = OptionsOfReference(options);
  if (!options.overwrite_output_dir) {
    if (!reference || dir != WithoutLinks(reference->adapter)) return;
    ThrowInvalidInput(
        "reference {} is output_dir, where this run writes its own adapter; expected start, base, "
        "or the folder of another adapter",
        reference->adapter);
  }
  const auto check = [&](const std::string& adapter, std::string_view starts_from) {
    if (dir == WithoutLinks(adapter)) {
      ThrowInvalidInput(
          "output_dir {} is the adapter that the run {}, which overwrite_output_dir would remove; "
          "choose another directory",
          options.output_dir, starts_from);
    }
    if (Contains(dir, WithoutLinks(adapter))) {
      ThrowInvalidInput(
          "output_dir {} holds {}, which the run {} and overwrite_output_dir would remove; choose "
          "another directory",
          options.output_dir, adapter, starts_from);
    }
  };
  if (!options.adapter.empty()) check(options.adapter, "starts from");
  if (reference) check(reference->adapter, "takes as its reference");
}

// Refuses a folder, named by `option`, that cannot be made or written, before hours of training are
// spent. Leaves nothing behind.
void CheckWritable(const char* option, const fs::path& dir) {
  std::error_code ignored;
  if (fs::exists(dir, ignored) && !fs::is_directory(dir, ignored)) {
    ThrowInvalidInput("{} {} is a file; choose a directory", option, dir.string());
  }
  const fs::path ancestor = ExistingAncestor(dir);
  if (!fs::is_directory(ancestor, ignored) || access(ancestor.c_str(), W_OK | X_OK) != 0) {
    ThrowInvalidInput("{} {}: no permission to write {}", option, dir.string(),
                      fs::equivalent(ancestor, dir, ignored) ? "there" : "in " + ancestor.string());
  }
  // Some file systems refuse writes that the permissions allow, so a folder is made and removed.
  std::string probe = (ancestor / ".qlora-XXXXXX").string();
  if (mkdtemp(probe.data()) == nullptr) {
    ThrowInvalidInput("{} {} cannot be made: nothing can be written to {}: {}", option,
                      dir.string(), ancestor.string(), std::strerror(errno));
  }
  fs::remove(probe, ignored);
}

}  // namespace

fs::path ExistingAncestor(fs::path path) {
  std::error_code ignored;
  path = fs::absolute(path);
  // The root always exists, so this ends.
  while (!fs::exists(path, ignored) && path.has_relative_path()) path = path.parent_path();
  return path;
}

void CheckOutputDir(const TrainOptions& options, const std::optional<fs::path>& checkpoint) {
  const bool resumes_here = ResumesHere(options, checkpoint);
  if (!resumes_here) CheckNothingIsLost(options);
  const bool newest = ResumesFromNewest(options);
  if (newest && !checkpoint && HoldsAdapter(options.output_dir) && !options.overwrite_output_dir) {
    ThrowInvalidInput(
        "output_dir {0} holds a finished adapter and no checkpoint to resume from; to train the "
        "adapter further, give qlora train --adapter {0} and another output_dir",
        options.output_dir);
  }
  CheckWritable("output_dir", options.output_dir);
  if (ParseReportTo(options.report_to).tensorboard) {
    CheckWritable("logging_dir", LoggingDir(options));
  }
  // A run that was killed before its first checkpoint leaves logs, and "auto" starts it again.
  const bool may_exist = options.overwrite_output_dir || newest || resumes_here;
  if (!may_exist && HoldsRun(options.output_dir)) {
    ThrowInvalidInput(
        "output_dir {0} already holds a run; choose another, or give --overwrite-output-dir to "
        "replace the run; `qlora resume {0}` continues it",
        options.output_dir);
  }
}

std::string WarnOfOutputDir(const TrainOptions& options,
                            const std::optional<fs::path>& checkpoint) {
  try {
    CheckOutputDir(options, checkpoint);
    FolderLock lock;  // only tried
    TakeOutputDir(lock, options);
    return "";
  } catch (const Error& error) {
    return fmt::format("train would refuse this run: {}", error.what());
  }
}

void TakeOutputDir(FolderLock& lock, const TrainOptions& options) {
  if (lock.Take(options.output_dir)) return;
  ThrowInvalidInput(
      "output_dir {} is in use by another run; wait until that run has ended, or choose another "
      "output_dir",
      options.output_dir);
}

void MakeOutputDir(const TrainOptions& options) {
  std::error_code error;
  fs::create_directories(options.output_dir, error);
  if (!error) return;
  ThrowInvalidInput("output_dir {} cannot be made: {}", options.output_dir, error.message());
}

void PrepareOutputDir(const TrainOptions& options, const std::optional<fs::path>& checkpoint) {
  const fs::path dir = options.output_dir;
  std::error_code error;
  // Also when the run resumes here: an unfinished checkpoint is of no use to any run.
  RemoveUnfinishedCheckpoints(dir);
  fs::remove(dir / kGateFile, error);  // of another adapter
  if (!options.overwrite_output_dir || ResumesHere(options, checkpoint)) return;
  RemoveAllCheckpoints(dir);
  for (const fs::path& file : FilesOfRun(dir)) fs::remove(file, error);
  // Of the tokenizer, some of which the new run may not write.
  for (const std::string& name : TokenizerFileNames()) fs::remove(dir / name, error);
  // The event files of the default logging_dir. A logging_dir that the user names may hold other
  // runs.
  TrainOptions old;
  old.output_dir = dir.string();
  RemoveEventFiles(LoggingDir(old));
}

}  // namespace qlora
