// The folder of a run: checks that a run may use it, and prepares it.
#ifndef QLORA_PLAN_RUN_RUN_FOLDER_H_
#define QLORA_PLAN_RUN_RUN_FOLDER_H_

#include <filesystem>
#include <optional>
#include <string>

#include "io/folder_lock.h"
#include "qlora/train_options.h"

namespace qlora {

// The nearest part of the path that exists.
std::filesystem::path ExistingAncestor(std::filesystem::path path);

// Checks, without writing, that the run may use output_dir. Errors: InvalidInput when it cannot be
// written, is not a folder, holds a run that is neither replaced nor resumed, or holds a model,
// some of whose files have the names of files of a run.
void CheckOutputDir(const TrainOptions& options,
                    const std::optional<std::filesystem::path>& checkpoint);

// Says that `train` would not use output_dir, and why; "" where it would.
std::string WarnOfOutputDir(const TrainOptions& options,
                            const std::optional<std::filesystem::path>& checkpoint);

// Takes the lock of output_dir, where it exists. Errors: InvalidInput when another run has it.
void TakeOutputDir(FolderLock& lock, const TrainOptions& options);

// Makes output_dir where it does not exist. Errors: InvalidInput.
void MakeOutputDir(const TrainOptions& options);
// Removes unfinished checkpoints from output_dir, and the files of a run that is replaced. Other
// files stay.
void PrepareOutputDir(const TrainOptions& options,
                      const std::optional<std::filesystem::path>& checkpoint);

}  // namespace qlora

#endif  // QLORA_PLAN_RUN_RUN_FOLDER_H_
