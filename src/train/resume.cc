#include "train/resume.h"

#include "base/check.h"
#include "base/file.h"
#include "io/formats.h"
#include "train/checkpoint.h"
#include "train/run_files.h"

namespace qlora {
namespace fs = std::filesystem;
namespace {

bool WantsNewest(const TrainOptions& options) {
  return options.resume_from_checkpoint == "auto" || options.resume_from_checkpoint == "true";
}

// Without links and steps back; parts that do not exist yet as they are.
fs::path Resolved(const fs::path& path) {
  return (fs::weakly_canonical(fs::absolute(path).lexically_normal()) / "").parent_path();
}

}  // namespace

std::optional<fs::path> FindCheckpoint(const TrainOptions& options, TrainObserver& observer) {
  const std::string& wanted = options.resume_from_checkpoint;
  if (wanted.empty() || wanted == "false") return {};
  if (!WantsNewest(options)) {
    if (!fs::exists(fs::path(wanted) / "trainer_state.json")) {
      ThrowInvalidInput("resume_from_checkpoint {}: no complete checkpoint there", wanted);
    }
    return (fs::path(wanted) / "").parent_path();  // without a slash at the end
  }
  const std::vector<fs::path> all = ListCheckpoints(options.output_dir);
  for (auto checkpoint = all.rbegin(); checkpoint != all.rend(); ++checkpoint) {
    try {
      CheckCheckpoint(*checkpoint);
      return *checkpoint;
    } catch (const Error& error) {
      observer.OnWarning(
          fmt::format("{} is damaged and passed over: {}", checkpoint->string(), error.what()));
    }
  }
  return {};
}

bool ResumesHere(const TrainOptions& options, const std::optional<fs::path>& checkpoint) {
  std::error_code ignored;
  return checkpoint && fs::equivalent(fs::absolute(*checkpoint / "").parent_path().parent_path(),
                                      options.output_dir, ignored);
}

void CheckOutputDir(const TrainOptions& options, const std::optional<fs::path>& checkpoint) {
  const fs::path dir = Resolved(options.output_dir);
  if (!ResumesHere(options, checkpoint)) {
    if (HoldsModel(options.output_dir) || HoldsModel(dir)) {
      ThrowInvalidInput("output_dir {} holds a model; choose another directory",
                        options.output_dir);
    }
    if (options.overwrite_output_dir && !options.adapter.empty() &&
        Contains(dir, Resolved(options.adapter))) {
      ThrowInvalidInput(
          "output_dir {} holds {}, which the run starts from and overwrite_output_dir would "
          "remove; "
          "choose another directory",
          options.output_dir, options.adapter);
    }
  }
  const bool newest = WantsNewest(options);
  const bool finished = HoldsAdapter(options.output_dir);
  if (newest && !checkpoint && finished && !options.overwrite_output_dir) {
    ThrowInvalidInput(
        "output_dir {0} holds a finished adapter and no checkpoint to go on from; to train it "
        "further, give --adapter {0} and another output_dir",
        options.output_dir);
  }
  // A run that was killed before its first checkpoint leaves logs, and "auto" starts it anew.
  CheckRunDir(options.output_dir, options.overwrite_output_dir,
              newest || ResumesHere(options, checkpoint));
}

}  // namespace qlora
