// One optimizer step: forward, loss and backward over the micro-batches of a window, then an
// update.
#ifndef QLORA_TRAIN_STEP_H_
#define QLORA_TRAIN_STEP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/batch.h"
#include "model/decoder.h"
#include "train/gradient_tree.h"
#include "train/optimizer.h"

namespace qlora {

// Options that are the same in every step of a run.
struct StepOptions {
  GroupRates rates;
  double max_grad_norm = 0;  // 0: no clipping
  std::uint64_t seed = 0;    // seed of dropout and of NEFTune's noise
  double neftune_alpha = 0;
  std::vector<Recompute> recompute;  // (L)
};

// A gradient accumulation window: the micro-batches of one optimizer step, and its totals.
struct StepBatch {
  std::vector<Batch> micro_batches;
  std::int64_t first_micro_batch = 0;  // number of the first one since the start of training
  std::int64_t supervised = 0;         // supervised tokens of the window
  std::int64_t rows = 0;               // all tokens of the window
};

struct StepResult {
  double loss = 0;              // mean over the supervised tokens of the window
  double grad_norm = 0;         // before clipping
  std::int64_t supervised = 0;  // supervised tokens of the window
  std::int64_t hits = 0;        // supervised tokens that were the model's first choice
  std::int64_t rows = 0;        // all tokens of the window
  double learning_rate = 0;
  bool applied = false;    // false: loss or gradient was not finite, nothing was updated
  std::string bad_tensor;  // then: where the NaN or Inf appeared first
};

// The model that a step reads, and memory for the activations of a micro-batch.
struct StepModel {
  Backend& backend;
  const Decoder& decoder;
  const Arena& activations;
  const Arena& offloaded;  // memory().staging(): inputs of layers that are offloaded
};

// Runs the micro-batches of `batch` through the model and updates `adapter`, its gradients, which
// are added up in `tree`, and `optimizer`. The loss is summed over the window and divided by its
// supervised tokens, so that the split into micro-batches does not matter. A NaN or Inf does not
// end the step early: all micro-batches are run, then the update is skipped.
// update.step counts the updates, this one included.
StepResult TrainStep(const StepModel& model, const StepOptions& options, const StepBatch& batch,
                     const UpdateArgs& update, LoraAdapter& adapter, GradientTree& tree,
                     Optimizer& optimizer);

}  // namespace qlora

#endif  // QLORA_TRAIN_STEP_H_
