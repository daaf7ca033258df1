// Saving during training: when a checkpoint is due, which ones are kept, and the finished adapter.
#ifndef QLORA_TRAIN_CHECKPOINT_SAVER_H_
#define QLORA_TRAIN_CHECKPOINT_SAVER_H_

#include <filesystem>
#include <utility>

#include "checkpoint/train_position.h"
#include "qlora/train.h"
#include "train/loaded_run.h"

namespace qlora {

// With load_best_model_at_end: the checkpoint of the best evaluation before `at`, which may be in
// the folder of another run; empty when there was no evaluation. Errors: InvalidInput when it
// cannot be read.
std::filesystem::path FindBestCheckpoint(const TrainPlan& plan, const TrainPosition& at);

class CheckpointSaver {
 public:
  // best: the result of FindBestCheckpoint.
  CheckpointSaver(const TrainPlan& plan, LoadedRun& loaded, std::filesystem::path best,
                  TrainObserver& observer)
      : plan_(plan), loaded_(loaded), best_(std::move(best)), observer_(observer) {}

  // True every save_steps steps, and with load_best_model_at_end after an evaluation that is the
  // `best` so far.
  bool IsDue(const TrainPosition& at, bool best) const;
  // Writes the checkpoint of `at` and removes the oldest ones beyond save_total_limit.
  void Save(const TrainPosition& at);
  // Leaves the adapter of the last step in output_dir, then in its place, with
  // load_best_model_at_end, the adapter of the best evaluation, so that a failure leaves one of the
  // two.
  void SaveResult(const TrainPosition& at);

 private:
  bool KeepsBest() const { return plan_.options.load_best_model_at_end; }

  const TrainPlan& plan_;
  LoadedRun& loaded_;
  std::filesystem::path best_;  // the checkpoint of the best evaluation
  TrainObserver& observer_;
};

}  // namespace qlora

#endif  // QLORA_TRAIN_CHECKPOINT_SAVER_H_
