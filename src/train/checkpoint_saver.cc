#include "train/checkpoint_saver.h"

#include <fmt/format.h>

#include "base/check.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/resume_options.h"
#include "checkpoint/retention.h"
#include "checkpoint/run_info.h"
#include "dist/agreement.h"
#include "plan/run/prepared_run.h"
#include "plan/run/run_folder.h"
#include "tokenizer/adapter_files.h"
#include "tokenizer/lookup_tables.h"
#include "train/decision_finish.h"

namespace qlora {

void CheckAdaptersAgree(LoadedRun& loaded) {
  if (loaded.communicator.is_alone()) return;
  const ConstMatrixView values = std::as_const(loaded.adapter).parameters();
  const std::size_t bytes = BytesOf(values.dtype, values.cols);
  const HostBytes host(loaded.adapter.memory(), values.Row<std::byte>(0), bytes);
  const auto hash = HashBytes({reinterpret_cast<const char*>(host.data()), bytes});
  AgreeOn(loaded.communicator, {{"hash of the adapter", fmt::format("{:016x}", hash)}});
}

std::filesystem::path FindBestCheckpoint(const TrainPlan& plan, const TrainPosition& at) {
  if (!plan.options.load_best_model_at_end || at.best.step < 0) return {};
  // Earlier evaluations and their checkpoint belong to the run that is resumed. A run
  // that starts at step 0 has had none, so there is a checkpoint here.
  const std::filesystem::path best =
      CheckpointDir(plan.run->start.checkpoint->parent_path(), at.best.step);
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

bool CheckpointSaver::IsDue(const StepPlace& place, bool best) const {
  return qlora::IsDue(SaveInterval(plan_.options, plan_.total_steps), place) ||
         (best && KeepsBest());
}

void CheckpointSaver::Save(const TrainPosition& at, bool stays) {
  CheckAdaptersAgree(loaded_);
  if (!loaded_.communicator.is_root()) return;
  FollowFolder(at);
  try {
    Write(at, stays);
  } catch (const Error& error) {  // a full disk, or a NaN, which cannot be stored
    if (!HasFolder()) ThrowMoved();
    const std::string& run_dir = plan_.options.output_dir;
    if (error.code() != ErrorCode::kRuntime || ListCheckpoints(run_dir).empty()) throw;
    throw Error(error.code(), fmt::format("{}. If the disk is full, free some space; the "
                                          "checkpoints so far stay in {}",
                                          error.what(), run_dir));
  }
}

bool CheckpointSaver::HasFolder() const {
  return (moved_ ? new_lock_ : lock_).IsAt(plan_.options.output_dir);
}

void CheckpointSaver::ThrowMoved() const {
  ThrowRuntime(
      "output_dir {} was renamed, removed or replaced while the run wrote to it, and the run "
      "cannot go on under that name; if it was renamed, its checkpoints so far are in the renamed "
      "folder, from which the run can resume",
      plan_.options.output_dir);
}

void CheckpointSaver::FollowFolder(const TrainPosition& at) {
  if (HasFolder()) return;
  const std::string& run_dir = plan_.options.output_dir;
  // The folder that has the name now may be of another run, and the best checkpoint went with the
  // old one.
  const bool needs_old = KeepsBest() && at.best.step >= 0 && at.best.step != at.step;
  if (moved_ || needs_old || std::filesystem::exists(run_dir)) ThrowMoved();
  moved_ = true;
  observer_.OnWarning(fmt::format(
      "output_dir {} was renamed, removed or replaced while the run writes to it; checkpoints from "
      "step {} on and the adapter are in a new folder of that name, the logs stay where they were",
      run_dir, at.step));
  MakeOutputDir(plan_.options);
  TakeOutputDir(new_lock_, plan_.options);
  WriteRunInfo(plan_);  // so that the new folder can be resumed
}

void CheckpointSaver::Write(const TrainPosition& at, bool stays) {
  const std::string& run_dir = plan_.options.output_dir;
  // The best checkpoint of a run that is resumed in another folder.
  if (KeepsBest() && at.best.step != at.step && !best_.empty() &&
      !std::filesystem::equivalent(best_.parent_path(), run_dir)) {
    best_ = CopyCheckpoint(best_, run_dir);
  }
  const std::filesystem::path dir = SaveCheckpoint(
      run_dir, loaded_.adapter, RecordedBase(*plan_.run), loaded_.optimizer, at, plan_.total_steps,
      RecordedOptions(plan_, loaded_.weights_hash), [&](const auto& unfinished) {
        // The tokenizer of the base is at hand; one that came with an adapter goes
        // along.
        if (plan_.run->data->has_other_tokenizer) CopyTokenizer(unfinished);
        WriteDecisions(plan_, unfinished);
      });
  if (KeepsBest() && at.best.step == at.step) {
    // The old best is no longer needed. One that was due counts like any other.
    if (!best_stays_ && best_ != dir) DiscardCheckpoint(best_);
    best_ = dir;
    best_stays_ = stays;
  }
  if (plan_.options.save_total_limit > 0) {
    RemoveOldCheckpoints(run_dir, plan_.options.save_total_limit, at.step,
                         KeepsBest() ? at.best.step : -1);
  }
  observer_.OnCheckpoint(dir.string());
}

void CheckpointSaver::CopyTokenizer(const std::filesystem::path& dir) const {
  CopyTokenizerFiles(plan_.run->base.model_dir, plan_.options.adapter, dir);
}

void CheckpointSaver::SaveResult(const TrainPosition& at) {
  if (!loaded_.communicator.is_root()) return;
  FollowFolder(at);
  const std::string& run_dir = plan_.options.output_dir;
  // The last adapter is saved first. A best checkpoint that cannot be read leaves it in the folder.
  loaded_.adapter.Save(run_dir);
  SaveBaseRecord(run_dir, RecordedBase(*plan_.run));
  CopyTokenizer(run_dir);
  WriteDecisions(plan_, run_dir);
  const bool best_is_earlier = KeepsBest() && at.best.step >= 0 && at.best.step != at.step;
  if (!best_is_earlier) return;
  loaded_.adapter.Read(best_);
  // The norms that DoRA divides by follow A and B, which have just been read.
  RefreshNorms(*loaded_.backend, loaded_.weights, loaded_.adapter);
  loaded_.adapter.Save(run_dir);
}

}  // namespace qlora
