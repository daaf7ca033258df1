#include "checkpoint/retention.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"
#include "checkpoint/checkpoint_folders.h"

namespace qlora {

namespace fs = std::filesystem;

void DiscardCheckpoint(const fs::path& dir) {
  // The hidden name has the prefix of unfinished checkpoints, so that RemoveUnfinishedCheckpoints
  // also removes the rest of it after an interruption.
  const std::string step = dir.filename().string().substr(kCheckpointPrefix.size());
  const fs::path hidden = dir.parent_path() / fmt::format("{}{}-old", kUnfinishedPrefix, step);
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
  const std::int64_t all = std::ssize(others);
  // A run that resumed from an older checkpoint may have checkpoints of later steps than `newest`.
  std::erase_if(others, [&](const fs::path& dir) {
    return StepOfCheckpoint(dir) == newest || StepOfCheckpoint(dir) == spared;
  });
  for (std::int64_t i = 0; i < std::ssize(others) && all - i > keep; ++i) {
    DiscardCheckpoint(others[i]);
  }
}

void RemoveAllCheckpoints(const fs::path& run_dir) {
  for (const fs::path& checkpoint : ListCheckpoints(run_dir)) DiscardCheckpoint(checkpoint);
}

void RemoveUnfinishedCheckpoints(const fs::path& run_dir) {
  std::error_code ignored;
  std::vector<fs::path> unfinished;
  // Collected first: an iteration need not see entries correctly while they are removed.
  for (const auto& entry : fs::directory_iterator(run_dir, ignored)) {
    if (entry.path().filename().string().starts_with(kUnfinishedPrefix)) {
      unfinished.push_back(entry.path());
    }
  }
  for (const fs::path& path : unfinished) fs::remove_all(path, ignored);
}

}  // namespace qlora
