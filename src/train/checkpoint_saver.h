// Saving during training: when a checkpoint is due, which ones are kept, and the finished adapter.
#ifndef QLORA_TRAIN_CHECKPOINT_SAVER_H_
#define QLORA_TRAIN_CHECKPOINT_SAVER_H_

#include <filesystem>
#include <utility>

#include "checkpoint/train_position.h"
#include "io/folder_lock.h"
#include "qlora/train.h"
#include "step/interval.h"
#include "train/loaded_run.h"

namespace qlora {

// With load_best_model_at_end: the checkpoint of the best evaluation before `at`, which may be in
// the folder of another run; empty when there was no evaluation. Errors: InvalidInput when it
// cannot be read.
std::filesystem::path FindBestCheckpoint(const TrainPlan& plan, const TrainPosition& at);

// Every rank updates the adapter alike, so that a difference is a fault of a machine or of a file.
// Errors: InvalidInput on all ranks when the adapters differ, naming the ranks.
void CheckAdaptersAgree(LoadedRun& loaded);

class CheckpointSaver {
 public:
  // best: the result of FindBestCheckpoint. lock: holds output_dir.
  CheckpointSaver(const TrainPlan& plan, LoadedRun& loaded, std::filesystem::path best,
                  const FolderLock& lock, TrainObserver& observer)
      : plan_(plan), loaded_(loaded), best_(std::move(best)), lock_(lock), observer_(observer) {}

  // True as often as save_steps, save_ratio or saves_per_epoch say, and with load_best_model_at_end
  // after an evaluation that is the `best` so far.
  bool IsDue(const StepPlace& place, bool best) const;
  // Compares the adapters of all ranks, then, on rank 0, writes the checkpoint of `at` and removes
  // the oldest ones beyond save_total_limit. stays: false for one that is due as the best alone,
  // which goes once another one is better.
  void Save(const TrainPosition& at, bool stays);
  // Leaves the adapter of the last step in output_dir, then in its place, with
  // load_best_model_at_end, the adapter of the best evaluation, so that a failure leaves one of the
  // two.
  void SaveResult(const TrainPosition& at);

 private:
  void Write(const TrainPosition& at, bool stays);
  // Goes on in a new folder, with a warning, where output_dir was renamed or removed. Errors:
  // Runtime where a folder of that name is there again, or the best checkpoint is out of reach.
  void FollowFolder(const TrainPosition& at);
  // True while output_dir is the folder that the run holds.
  bool HasFolder() const;
  [[noreturn]] void ThrowMoved() const;
  // Copies the files of the tokenizer that the run reads.
  void CopyTokenizer(const std::filesystem::path& dir) const;
  bool KeepsBest() const { return plan_.options.load_best_model_at_end; }

  const TrainPlan& plan_;
  LoadedRun& loaded_;
  std::filesystem::path best_;  // the checkpoint of the best evaluation
  bool best_stays_ = true;      // that of an earlier process may have been due
  const FolderLock& lock_;
  bool moved_ = false;   // output_dir is another folder than at the start
  FolderLock new_lock_;  // holds that folder
  TrainObserver& observer_;
};

}  // namespace qlora

#endif  // QLORA_TRAIN_CHECKPOINT_SAVER_H_
