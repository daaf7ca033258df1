// Finds the position at which a run resumes.
#ifndef QLORA_CHECKPOINT_RESUME_POINT_H_
#define QLORA_CHECKPOINT_RESUME_POINT_H_

#include <cstdint>
#include <filesystem>
#include <optional>

#include "qlora/train_options.h"
#include "qlora/train_plan.h"

namespace qlora {

// True when the checkpoint belongs to the run in output_dir. Otherwise a run that resumes from it
// starts a new folder.
bool ResumesHere(const TrainOptions& options,
                 const std::optional<std::filesystem::path>& checkpoint);

// total_steps: of the run that resumes. Errors: InvalidInput when more steps are done, or a file of
// the checkpoint or of output_dir is damaged.
ResumePoint FindResumePoint(const std::filesystem::path& checkpoint, const TrainOptions& options,
                            std::int64_t total_steps);

}  // namespace qlora

#endif  // QLORA_CHECKPOINT_RESUME_POINT_H_
