// The checkpoint-N/ folders of a run: their names, and the newest of them.
#ifndef QLORA_CHECKPOINT_CHECKPOINT_FOLDERS_H_
#define QLORA_CHECKPOINT_CHECKPOINT_FOLDERS_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "qlora/train_options.h"

namespace qlora {

// Names of unfinished folders begin with a dot, so that no listing shows them.
inline constexpr std::string_view kCheckpointPrefix = "checkpoint-";
inline constexpr std::string_view kUnfinishedPrefix = ".unfinished-checkpoint-";

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

// True when the folder holds a finished adapter.
bool HoldsAdapter(const std::filesystem::path& dir);

// True for resume_from_checkpoint auto (or true): the newest checkpoint of output_dir, if any.
bool ResumesFromNewest(const TrainOptions& options);
// Returns the checkpoint that resume_from_checkpoint names, or nothing when the option is not set,
// or is auto and there is no checkpoint. auto passes over damaged checkpoints and adds a warning
// for each. whole: a checkpoint that has been read already and is not read again. Errors:
// InvalidInput when a named checkpoint does not exist or is damaged, and for auto when all
// checkpoints are damaged and overwrite_output_dir is not set.
std::optional<std::filesystem::path> FindCheckpoint(
    const TrainOptions& options, std::vector<std::string>& warnings,
    const std::optional<std::filesystem::path>& whole = {});

}  // namespace qlora

#endif  // QLORA_CHECKPOINT_CHECKPOINT_FOLDERS_H_
