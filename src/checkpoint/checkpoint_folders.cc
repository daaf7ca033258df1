#include "checkpoint/checkpoint_folders.h"

#include <algorithm>

#include "base/check.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

}  // namespace

std::optional<std::int64_t> StepOfCheckpoint(const fs::path& dir) {
  // The whole rest of the name must be a number: "checkpoint-12-best" is a folder of the user.
  const std::string name = dir.filename().string();
  if (!name.starts_with(kCheckpointPrefix)) return {};
  return ParseNumber<std::int64_t>(name.substr(kCheckpointPrefix.size()));
}

fs::path CheckpointDir(const fs::path& run_dir, std::int64_t step) {
  return run_dir / fmt::format("{}{}", kCheckpointPrefix, step);
}

fs::path UnfinishedCheckpointDir(const fs::path& run_dir, std::int64_t step) {
  return run_dir / fmt::format("{}{}", kUnfinishedPrefix, step);
}

std::vector<fs::path> ListCheckpoints(const fs::path& run_dir) {
  // Sorted by number: as text, checkpoint-1000 would come before checkpoint-200.
  std::vector<std::pair<std::int64_t, fs::path>> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(run_dir, ignored)) {
    const std::optional<std::int64_t> step = StepOfCheckpoint(entry.path());
    if (step && fs::exists(entry.path() / kTrainerState)) found.emplace_back(*step, entry.path());
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

bool HoldsAdapter(const fs::path& dir) {
  std::error_code ignored;
  return fs::exists(dir / "adapter_model.safetensors", ignored);
}

bool ResumesFromNewest(const TrainOptions& options) {
  return options.resume_from_checkpoint == "auto" || options.resume_from_checkpoint == "true";
}

std::optional<fs::path> FindCheckpoint(const TrainOptions& options,
                                       std::vector<std::string>& warnings,
                                       const std::optional<fs::path>& whole) {
  const std::string& named = options.resume_from_checkpoint;
  if (named.empty() || named == "false") return {};
  if (!ResumesFromNewest(options)) {
    if (!fs::exists(fs::path(named) / kTrainerState)) {
      ThrowInvalidInput("resume_from_checkpoint {}: no complete checkpoint there", named);
    }
    const fs::path checkpoint = (fs::path(named) / "").parent_path();  // without a slash at the end
    if (checkpoint != whole) CheckCheckpoint(checkpoint);
    return checkpoint;
  }
  const std::vector<fs::path> all = ListCheckpoints(options.output_dir);
  // From the newest on. Passing over a damaged checkpoint costs only the steps since the one
  // before.
  for (auto checkpoint = all.rbegin(); checkpoint != all.rend(); ++checkpoint) {
    try {
      if (*checkpoint != whole) CheckCheckpoint(*checkpoint);
      return *checkpoint;
    } catch (const Error& error) {
      warnings.push_back(
          fmt::format("{} is damaged and passed over: {}", checkpoint->string(), error.what()));
    }
  }
  if (!all.empty() && !options.overwrite_output_dir) {
    ThrowInvalidInput(
        "{}: no checkpoint can be read; {}; to train from the first step, choose another "
        "output_dir, or give --overwrite_output_dir to replace the run",
        options.output_dir, warnings.back());
  }
  warnings.push_back(
      fmt::format("{} holds no checkpoint to resume from, so the run starts at its first step",
                  options.output_dir));
  return {};
}

}  // namespace qlora
