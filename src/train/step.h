// One optimizer step: forward, loss, backward over the micro-batches of a window, then an update.
#ifndef QLORA_TRAIN_STEP_H_
#define QLORA_TRAIN_STEP_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/batch.h"
#include "model/decoder.h"
#include "train/optimizer.h"

namespace qlora {

struct StepOptions {
  UpdateArgs update;  // learning_rate, step and gradient_scale are those of the step
  GroupRates rates;
  double max_grad_norm = 0;  // 0: no clipping
  std::uint64_t seed = 0;    // of dropout and of NEFTune's noise
  double neftune_alpha = 0;
  std::vector<Recompute> recompute;  // (L)
};

struct StepResult {
  double loss = 0;              // mean over the supervised tokens of the window
  double grad_norm = 0;         // before clipping
  std::int64_t supervised = 0;  // supervised tokens of the window
  std::int64_t hits = 0;        // supervised tokens that were the model's first choice
  std::int64_t rows = 0;        // all tokens of the window
  bool applied = false;         // false: loss or gradient was not finite, nothing was updated
  std::string bad_tensor;       // then: where the NaN or Inf appeared first
};

// Runs the micro-batches of one window through `decoder` and updates its adapter. `updates` counts
// the steps before this one that were applied, `micro_step` micro-batches. The loss is summed over
// the window and divided by its supervised tokens, so that the split into micro-batches does not
// matter. `memory` holds the activations of any of the micro-batches.
StepResult TrainStep(Backend& backend, const Decoder& decoder, const StepOptions& options,
                     std::span<const Batch> window, double learning_rate, std::int64_t updates,
                     std::uint64_t micro_step, const Arena& memory, Optimizer& optimizer);

}  // namespace qlora

#endif  // QLORA_TRAIN_STEP_H_
