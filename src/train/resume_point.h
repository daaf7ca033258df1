// Finds the position at which a run resumes.
#ifndef QLORA_TRAIN_RESUME_POINT_H_
#define QLORA_TRAIN_RESUME_POINT_H_

#include <cstdint>
#include <filesystem>

#include "qlora/train.h"

namespace qlora {

// total_steps: of the run that resumes. Errors: InvalidInput when more steps are done, or a file of
// the checkpoint or of output_dir is damaged.
ResumePoint FindResumePoint(const std::filesystem::path& checkpoint, const TrainOptions& options,
                            std::int64_t total_steps);

}  // namespace qlora

#endif  // QLORA_TRAIN_RESUME_POINT_H_
