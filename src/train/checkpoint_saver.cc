#include "train/checkpoint_saver.h"

#include "base/check.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/resume_options.h"
#include "checkpoint/retention.h"
#include "io/json.h"
#include "plan/prepared_run.h"

namespace qlora {

std::filesystem::path FindBestCheckpoint(const TrainPlan& plan, const TrainPosition& at) {
  if (!plan.options.load_best_model_at_end || at.best.step < 0) return {};
  // Earlier evaluations and their checkpoint belong to the run that is resumed. A run
  // that starts at step 0 has had none, so there is a checkpoint here.
  const std::filesystem::path best =
      CheckpointDir(plan.run->checkpoint->parent_path(), at.best.step);
  try {
    CheckCheckpoint(best);
  } catch (const Error& error) {
    ThrowInvalidInput(
        "load_best_model_at_end: the best evaluation so far was at step {}, whose checkpoint {} "
        "cannot be read: {}. Resume from an earlier checkpoint, or set load_best_model_at_end "
        "false",
        at.best.step, best.string(), error.what());
  }
  return best;
}

bool CheckpointSaver::IsDue(const TrainPosition& at, bool best) const {
  const std::int64_t every = plan_.options.save_steps;
  return (every > 0 && at.step % every == 0) || (best && KeepsBest());
}

void CheckpointSaver::Save(const TrainPosition& at) {
  const std::string& run_dir = plan_.options.output_dir;
  // The best checkpoint of a run that is resumed in another folder.
  if (KeepsBest() && at.best.step != at.step && !best_.empty() &&
      !std::filesystem::equivalent(best_.parent_path(), run_dir)) {
    best_ = CopyCheckpoint(best_, run_dir);
  }
  const std::filesystem::path dir =
      SaveCheckpoint(run_dir, loaded_.adapter, plan_.run->form, loaded_.optimizer, at,
                     plan_.total_steps, RecordedOptions(plan_));
  // The old best is no longer needed and counts like any other in RemoveOldCheckpoints.
  if (at.best.step == at.step) best_ = dir;
  if (plan_.options.save_total_limit > 0) {
    RemoveOldCheckpoints(run_dir, plan_.options.save_total_limit, at.step,
                         KeepsBest() ? at.best.step : -1);
  }
  observer_.OnCheckpoint(dir.string());
}

void CheckpointSaver::SaveResult(const TrainPosition& at) {
  const std::string& run_dir = plan_.options.output_dir;
  // The last adapter is saved first. A best checkpoint that cannot be read leaves it in the folder.
  loaded_.adapter.Save(run_dir);
  SaveBaseRecord(run_dir, plan_.run->form);
  const bool best_is_earlier = KeepsBest() && at.best.step >= 0 && at.best.step != at.step;
  if (!best_is_earlier) return;
  loaded_.adapter.Read(best_);
  // The norms that DoRA divides by follow A and B, which have just been read.
  RefreshNorms(*loaded_.backend, loaded_.weights, loaded_.adapter);
  loaded_.adapter.Save(run_dir);
}

}  // namespace qlora
