#include "train/checkpoint_dirs.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/check.h"
#include "train/checkpoint.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// Names of unfinished folders begin with a dot and do not match kPrefix: no listing shows them.
constexpr std::string_view kPrefix = "checkpoint-";
constexpr std::string_view kUnfinished = ".unfinished-checkpoint-";

}  // namespace

std::optional<std::int64_t> StepOfCheckpoint(const fs::path& dir) {
  // The whole rest of the name must be a number: "checkpoint-12-best" is a folder of the user.
  const std::string name = dir.filename().string();
  if (!name.starts_with(kPrefix)) return {};
  std::int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (error != std::errc() || stop != end) return {};
  return step;
}

fs::path CheckpointDir(const fs::path& run_dir, std::int64_t step) {
  return run_dir / fmt::format("{}{}", kPrefix, step);
}

fs::path UnfinishedCheckpointDir(const fs::path& run_dir, std::int64_t step) {
  return run_dir / fmt::format("{}{}", kUnfinished, step);
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
    return (fs::path(named) / "").parent_path();  // without a slash at the end
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

void DiscardCheckpoint(const fs::path& dir) {
  // The hidden name has the prefix of unfinished checkpoints, so that RemoveUnfinishedCheckpoints
  // also removes what an interruption leaves of it.
  const std::string step = dir.filename().string().substr(kPrefix.size());
  const fs::path hidden = dir.parent_path() / fmt::format("{}{}-old", kUnfinished, step);
  try {
    fs::remove_all(hidden);
    fs::rename(dir, hidden);
    fs::remove_all(hidden);
  } catch (const fs::filesystem_error& error) {
    ThrowRuntime("cannot remove {}: {}", dir.string(), error.what());
  }
}

void RemoveOldCheckpoints(const fs::path& run_dir, std::int64_t keep, std::int64_t newest,
                          std::int64_t spared) {
  std::vector<fs::path> others = ListCheckpoints(run_dir);
  // A run that resumed from an older checkpoint may have checkpoints of later steps than `newest`.
  std::erase_if(others, [&](const fs::path& dir) {
    return StepOfCheckpoint(dir) == newest || StepOfCheckpoint(dir) == spared;
  });
  // `others` has neither `newest` nor `spared`; `newest` counts towards `keep`.
  for (std::int64_t i = 0; i + keep - 1 < std::ssize(others); ++i) DiscardCheckpoint(others[i]);
}

void RemoveAllCheckpoints(const fs::path& run_dir) {
  for (const fs::path& checkpoint : ListCheckpoints(run_dir)) DiscardCheckpoint(checkpoint);
}

void RemoveUnfinishedCheckpoints(const fs::path& run_dir) {
  std::error_code ignored;
  std::vector<fs::path> unfinished;
  // Collected first: an iteration need not see entries correctly while they are removed.
  for (const auto& entry : fs::directory_iterator(run_dir, ignored)) {
    if (entry.path().filename().string().starts_with(kUnfinished)) {
      unfinished.push_back(entry.path());
    }
  }
  for (const fs::path& path : unfinished) fs::remove_all(path, ignored);
}

}  // namespace qlora
