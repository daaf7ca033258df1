// Which checkpoints of a run are kept: the removal of old, replaced and unfinished ones.
#ifndef QLORA_CHECKPOINT_RETENTION_H_
#define QLORA_CHECKPOINT_RETENTION_H_

#include <cstdint>
#include <filesystem>

namespace qlora {

// Removes a checkpoint: renames the folder, so that the checkpoint disappears at once, then removes
// the files.
void DiscardCheckpoint(const std::filesystem::path& dir);
// Removes the oldest checkpoints until `keep` remain. Those of the steps `newest` and `spared` are kept
// in any case, and counted.
void RemoveOldCheckpoints(const std::filesystem::path& run_dir, std::int64_t keep,
                          std::int64_t newest, std::int64_t spared);
void RemoveAllCheckpoints(const std::filesystem::path& run_dir);
// Removes the folders that interrupted saves left behind.
void RemoveUnfinishedCheckpoints(const std::filesystem::path& run_dir);

}  // namespace qlora

#endif  // QLORA_CHECKPOINT_RETENTION_H_
