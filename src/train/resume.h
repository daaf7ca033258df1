// Which checkpoint a run goes on from, and whether it may use its folder.
#ifndef QLORA_TRAIN_RESUME_H_
#define QLORA_TRAIN_RESUME_H_

#include <filesystem>
#include <optional>

#include "qlora/train.h"

namespace qlora {

// The checkpoint that resume_from_checkpoint means; nothing where it is not set, and for "auto"
// without a checkpoint. "auto" passes over damaged ones with a warning. Errors: InvalidInput when
// the named one is not there.
std::optional<std::filesystem::path> FindCheckpoint(const TrainOptions& options,
                                                    TrainObserver& observer);

// Whether the run goes on in the folder of that checkpoint; in another, it starts a new run there.
bool ResumesHere(const TrainOptions& options,
                 const std::optional<std::filesystem::path>& checkpoint);

// Errors: InvalidInput when output_dir cannot be written, holds a run that is neither to be
// overwritten nor resumed, or a model, some of whose files have the names of those of a run.
void CheckOutputDir(const TrainOptions& options,
                    const std::optional<std::filesystem::path>& checkpoint);

}  // namespace qlora

#endif  // QLORA_TRAIN_RESUME_H_
