// checkpoint-N/ folders: everything that a run needs to go on as if it had never stopped.
//
//   adapter_config.json, adapter_model.safetensors, qlora_base.json   the adapter, float32
//   chat_template.jinja     where the data were written with another than the model's
//   optimizer.safetensors   exp_avg, exp_avg_sq ... (n), laid out like the adapter in memory
//   trainer_state.json      counters, data cursor, options; its presence makes the folder complete
#ifndef QLORA_TRAIN_CHECKPOINT_H_
#define QLORA_TRAIN_CHECKPOINT_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "io/json.h"
#include "model/base_form.h"
#include "model/lora.h"
#include "train/monitor.h"
#include "train/step.h"

namespace qlora {

// Where a run stands.
struct TrainPosition {
  std::int64_t step = 0;           // optimizer steps done
  std::uint64_t micro_step = 0;    // micro-batches done
  std::int64_t epoch = 0;          // of the next micro-batch
  std::int64_t epoch_batch = 0;    // micro-batches of that epoch already done
  std::int64_t tokens = 0;         // supervised tokens seen
  std::int64_t skipped_steps = 0;  // steps whose loss or gradient was not finite
  std::int64_t skipped_in_a_row = 0;
  bool eval_due = false;           // an evaluation of this step was put off by an interruption
  std::int64_t sampled_step = -1;  // whose sample texts were written last
  LossMonitor losses;
  BestEval best;
};

// Writes run_dir/checkpoint-<step> under a temporary name, syncs it and renames it, so that it is
// there whole or not at all, whatever ends the process. `options` is what must be the same when the
// run goes on. Returns its path. Errors: Runtime (disk full ...); older checkpoints are untouched.
std::filesystem::path SaveCheckpoint(const std::filesystem::path& run_dir,
                                     const LoraAdapter& adapter, const BaseForm& form,
                                     const Optimizer& optimizer, const TrainPosition& position,
                                     const Json& options);

// Opens every file of a checkpoint and checks that it is whole. Errors: InvalidInput.
void CheckCheckpoint(const std::filesystem::path& checkpoint);

// Restores adapter and optimizer, which are of the same shape. Errors: InvalidInput when the
// checkpoint is damaged, or was made with other options, naming the keys that differ.
TrainPosition LoadCheckpoint(const std::filesystem::path& checkpoint, const Json& options,
                             LoraAdapter& adapter, Optimizer& optimizer);

// Where the checkpoint of a step lies.
std::filesystem::path CheckpointDir(const std::filesystem::path& run_dir, std::int64_t step);
// Complete checkpoints of a run, oldest first.
std::vector<std::filesystem::path> ListCheckpoints(const std::filesystem::path& run_dir);
// Removes the oldest until `keep` remain, that of step `newest` among them. That of step `spared`
// stays and is not counted.
void RemoveOldCheckpoints(const std::filesystem::path& run_dir, std::int64_t keep,
                          std::int64_t newest, std::int64_t spared);
void RemoveAllCheckpoints(const std::filesystem::path& run_dir);
// Removes what interrupted saves left behind.
void RemoveUnfinishedCheckpoints(const std::filesystem::path& run_dir);

}  // namespace qlora

#endif  // QLORA_TRAIN_CHECKPOINT_H_
