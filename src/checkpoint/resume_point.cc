#include "checkpoint/resume_point.h"

#include "base/check.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/run_info.h"
#include "checkpoint/train_position.h"

namespace qlora {

namespace fs = std::filesystem;

bool ResumesHere(const TrainOptions& options, const std::optional<fs::path>& checkpoint) {
  std::error_code ignored;
  return checkpoint && fs::equivalent(fs::absolute(*checkpoint / "").parent_path().parent_path(),
                                      options.output_dir, ignored);
}

ResumePoint FindResumePoint(const std::filesystem::path& checkpoint, const TrainOptions& options,
                            std::int64_t total_steps) {
  // max_steps may be raised when a run resumes, and lowered to no less than the steps that are
  // done.
  const auto [at, total_before] = ReadPlace(checkpoint);
  if (at.step > total_steps) {
    ThrowInvalidInput(
        "{}: {} steps are done, and num_train_epochs or max_steps ask for {}; ask for {} or more",
        checkpoint.string(), at.step, total_steps, at.step);
  }
  ResumePoint point{
      .checkpoint = checkpoint.string(), .step = at.step, .total_steps = total_before};
  // No step is left, but an interruption may have come before the result was saved: only the record
  // of the folder tells that it is complete.
  point.is_end = at.step == total_steps || StopsEarly(options, at);
  point.is_complete =
      ResumesHere(options, checkpoint) && FinishedStepOf(options.output_dir) == at.step;
  return point;
}

}  // namespace qlora
