// Files that describe a run, for readers of its logs and for `qlora resume`.
#ifndef QLORA_CHECKPOINT_RUN_INFO_H_
#define QLORA_CHECKPOINT_RUN_INFO_H_

#include <cstdint>
#include <filesystem>
#include <optional>

#include "qlora/train_plan.h"

namespace qlora {

// Number of steps, memory plan, data, a prompt of the data, the folder in which the run was
// started, and the step at which the run ended.
inline constexpr const char* kRunInfo = "run_info.json";
inline constexpr const char* kStartFolder = "start_folder";
inline constexpr const char* kFinishedStep = "finished_step";
inline constexpr const char* kTrainConfig = "train_config.json";  // all options

// Writes both files to output_dir. finished_step: the last step of a run whose result is in
// output_dir. Errors: Runtime.
void WriteRunInfo(const TrainPlan& plan, std::optional<std::int64_t> finished_step = {});

// The last step of the run in `dir`, if the result of the run is complete. Errors: InvalidInput for
// a damaged file.
std::optional<std::int64_t> FinishedStepOf(const std::filesystem::path& dir);

// The folder in which the run in `dir` was started, from which its relative paths lead; "" where
// the run does not record the folder. Errors: InvalidInput for a damaged file.
std::filesystem::path StartFolderOf(const std::filesystem::path& dir);

// The prompt of the training data that the run in `dir` records; none in folders without a run.
// Errors: InvalidInput for a damaged file.
PromptExample RecordedExample(const std::filesystem::path& dir);

}  // namespace qlora

#endif  // QLORA_CHECKPOINT_RUN_INFO_H_
