// checkpoint-N/ folders: everything that a run needs to resume as if it had never stopped.
//
//   adapter_config.json, adapter_model.safetensors, qlora_base.json   the adapter, float32
//   chat_template.jinja     the template that wrote the data, when it is not the model's
//   tokenizer.json ...      the tokenizer, when it is not the model's
//   optimizer.safetensors   exp_avg, exp_avg_sq ... (n), laid out like the adapter in memory
//   trainer_state.json      counters, data cursor, number of steps of the run, options, checksums
//                           of the other files; its presence makes the folder complete
//
// Every run ends with a checkpoint, from which a longer run continues. Random numbers are functions
// of seed, place and index (base/random.h), so that no state of a generator is saved.
//
//   train_position.h        the counters and cursors of a run
//   resume_options.h        the options that may change when a run resumes
//   run_info.h, resume_point.h   the files that `qlora resume` finds in the folder of a run
//   checkpoint_folders.h    the checkpoints of a run; retention.h deletes old ones
//   best_evaluation.h       the checkpoint with the best evaluation so far
//   file_checksums.h        shows that the files are those that were written
//   model_fingerprint.h     shows that a base is the one that was trained on
#ifndef QLORA_CHECKPOINT_CHECKPOINT_H_
#define QLORA_CHECKPOINT_CHECKPOINT_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "adapter/lora.h"
#include "checkpoint/train_position.h"
#include "io/json_fwd.h"
#include "model/base_record.h"
#include "step/optimizer.h"

namespace qlora {

// Writes the checkpoint of `position` below run_dir. The folder is written under a temporary name,
// synced and renamed: it exists whole or not at all, whatever ends the process. total_steps: of the
// whole run. `options` holds the options that a resumed run must share. add_files: writes further
// files into the folder that it is given, before the checkpoint is complete; may be empty. Returns
// the folder. Errors: Runtime (disk full ...); older checkpoints are untouched.
std::filesystem::path SaveCheckpoint(
    const std::filesystem::path& run_dir, const LoraAdapter& adapter, const BaseRecord& base,
    const Optimizer& optimizer, const TrainPosition& position, std::int64_t total_steps,
    const Json& options,
    const std::function<void(const std::filesystem::path& unfinished)>& add_files);

// Opens every file of a checkpoint and checks that each is whole and that a run can have written
// every value. Errors: InvalidInput.
void CheckCheckpoint(const std::filesystem::path& checkpoint);

// The position of a run at a checkpoint, and the steps of the run in all; 0 where the checkpoint
// does not record them. Errors: as CheckCheckpoint.
struct CheckpointPlace {
  TrainPosition at;
  std::int64_t total_steps = 0;
};
CheckpointPlace ReadPlace(const std::filesystem::path& checkpoint);

// Copies another run's checkpoint into `run_dir`. Returns the copy. Errors: Runtime (full disk).
std::filesystem::path CopyCheckpoint(const std::filesystem::path& checkpoint,
                                     const std::filesystem::path& run_dir);

// Compares the options of a run (RecordedOptions) with the options of the checkpoint that it
// resumes from. base_may_change: another form of the base may still take its place, and is not
// compared where the samples are the same. Errors: InvalidInput when they differ, naming the keys.
void CheckOptionsOnResume(const std::filesystem::path& checkpoint, Json options,
                          bool base_may_change = false);

// NoteUnrecorded of the options of the checkpoint.
std::string NoteUnrecorded(const std::filesystem::path& checkpoint);

// True when the checkpoint's options split the samples of a step into other micro-batches than
// `options`, those of a run (RecordedOptions).
bool SplitsStepsAgain(const std::filesystem::path& checkpoint, const Json& options);

// Restores adapter and optimizer, which have the same shapes as when they were saved. Errors:
// InvalidInput when the checkpoint is damaged, or was made with other options, naming the keys.
TrainPosition LoadCheckpoint(const std::filesystem::path& checkpoint, const Json& options,
                             LoraAdapter& adapter, Optimizer& optimizer);

}  // namespace qlora

#endif  // QLORA_CHECKPOINT_CHECKPOINT_H_
