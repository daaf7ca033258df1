// The checkpoint-N/ folders of a run: their names, the newest of them, and their removal.
#ifndef QLORA_TRAIN_CHECKPOINT_DIRS_H_
#define QLORA_TRAIN_CHECKPOINT_DIRS_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "qlora/train.h"

namespace qlora {

// A checkpoint folder is complete when it holds this file.
inline constexpr const char* kTrainerState = "trainer_state.json";

// The folder of the checkpoint of a step, and where it is written before it is complete.
std::filesystem::path CheckpointDir(const std::filesystem::path& run_dir, std::int64_t step);
std::filesystem::path UnfinishedCheckpointDir(const std::filesystem::path& run_dir,
                                              std::int64_t step);

// The N of a folder "checkpoint-N"; nothing for other names.
std::optional<std::int64_t> StepOfCheckpoint(const std::filesystem::path& dir);

// The complete checkpoints of a run, oldest first.
std::vector<std::filesystem::path> ListCheckpoints(const std::filesystem::path& run_dir);

// True for resume_from_checkpoint auto (or true): the newest checkpoint of output_dir, if any.
bool ResumesFromNewest(const TrainOptions& options);
// The checkpoint that resume_from_checkpoint names; nothing when the option is not set, or is auto
// and there is no checkpoint. auto passes over damaged checkpoints and adds a warning for each.
// whole: a checkpoint that has been read already and is not read again. Errors: InvalidInput when a
// checkpoint that is named does not exist, and when all are damaged that auto would replace.
std::optional<std::filesystem::path> FindCheckpoint(
    const TrainOptions& options, std::vector<std::string>& warnings,
    const std::optional<std::filesystem::path>& whole = {});

// Removes a checkpoint: renames the folder, so that the checkpoint disappears at once, then removes
// the files.
void DiscardCheckpoint(const std::filesystem::path& dir);
// Removes the oldest checkpoints until `keep` remain, one of which is that of step `newest`. The
// checkpoint of step `spared` is kept and not counted.
void RemoveOldCheckpoints(const std::filesystem::path& run_dir, std::int64_t keep,
                          std::int64_t newest, std::int64_t spared);
void RemoveAllCheckpoints(const std::filesystem::path& run_dir);
// Removes what interrupted saves left behind.
void RemoveUnfinishedCheckpoints(const std::filesystem::path& run_dir);

}  // namespace qlora

#endif  // QLORA_TRAIN_CHECKPOINT_DIRS_H_
