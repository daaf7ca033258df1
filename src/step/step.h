// One optimizer step: forward, loss and backward over the micro-batches of a window, then an
// update.
//
// A step has two halves: AddGradients, after which the ranks that share a window have its gradient
// and sums, and ApplyGradients, which each of them runs alike. The split does not change the bits:
// gradients are added in a fixed tree (gradient_tree.h), sums in the order of micro-batches, and
// no rank leaves a step early.
//
//   window_passes.h   forward and backward passes in that order
//   anchor_base.h     what the base computes of an anchor, before them
//   optimizer.h   AdamW, AdamW with 8-bit or paged moments, SGD
//   schedule.h    the learning rate of each step
//   non_finite.h  where a NaN or Inf appeared first
//   loss_rise.h, loss_spikes.h   when a run has diverged, and when a loss jumped
#ifndef QLORA_STEP_STEP_H_
#define QLORA_STEP_STEP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/batch.h"
#include "objective/supervised.h"
#include "pass/decoder.h"
#include "step/gradient_tree.h"
#include "step/optimizer.h"

namespace qlora {

// Options that are the same in every step of a run.
struct StepOptions {
  GroupRates rates;
  double max_grad_norm = 0;  // 0: no clipping
  std::uint64_t seed = 0;    // seed of dropout and of NEFTune's noise
  double neftune_alpha = 0;
  std::shared_ptr<const Objective> objective = std::make_shared<Supervised>();
  std::vector<Recompute> recompute;  // (L)
};

// A gradient accumulation window: the micro-batches of one optimizer step. Its totals count all
// micro-batches, also where this rank runs only some of them.
struct StepBatch {
  struct MicroBatch {
    std::int64_t index = 0;  // in the window
    Batch batch;
    std::vector<Batch> mismatched = {};  // of Objective::needs_kl: prompts with other answers
  };
  // The micro-batches that this rank runs, in the order of the window.
  std::vector<MicroBatch> micro_batches = {};
  std::int64_t count = 0;              // micro-batches of the window
  bool has_anchor = false;             // the last of them is one (objective/anchored.h)
  std::int64_t first_micro_batch = 0;  // number of its first one since the start of training
  WindowTotals totals = {};

  bool is_anchor(const MicroBatch& it) const { return has_anchor && it.index + 1 == count; }
};

// The results of the micro-batches of a window, besides their gradients.
struct WindowSums {
  std::vector<double> values;   // (count, S) of each micro-batch, S = Objective::sums
  WindowTotals totals = {};     // of the batch, with what AddGradients found
  std::string bad_tensor = {};  // where the first NaN or Inf of a forward pass of a rank appeared
};

struct StepResult {
  double loss = 0;                   // of the window
  std::vector<MetricValue> metrics;  // those of the objective that steps report, besides the loss
  double grad_norm = 0;              // before clipping
  WindowTotals totals;
  double learning_rate = 0;
  bool applied = false;    // false: loss or gradient was not finite, nothing was updated
  std::string bad_tensor;  // then: where the NaN or Inf appeared first
};

// The model that a step reads, the memory for the passes of a micro-batch, and the ranks that share
// a window.
struct StepModel {
  const Decoder& decoder;
  std::vector<Arena>& memories;  // one for each micro-batch that is on its way through stages
  Communicator& communicator;
  // Where given, receives how many of the window's micro-batches this rank has done.
  std::function<void(std::int64_t done)> progress = {};

  Backend& backend() const { return decoder.backend(); }
};

// Leaves the gradient of the loss of `batch` in `adapter`, added in the order of `tree`, and
// returns its sums, on every rank. A NaN or Inf ends no rank early. Missing micro-batches add
// zeros.
WindowSums AddGradients(const StepModel& model, const StepOptions& options, const StepBatch& batch,
                        LoraAdapter& adapter, GradientTree& tree);
// Updates the adapter and the optimizer from the gradients and the sums of the whole window, unless
// one of them is not finite. update.step counts the updates, this one included.
StepResult ApplyGradients(const StepModel& model, const StepOptions& options,
                          const StepBatch& batch, const WindowSums& sums, const UpdateArgs& update,
                          LoraAdapter& adapter, Optimizer& optimizer);

// Runs both halves: runs the micro-batches of `batch` through the model and updates `adapter`, its
// gradients, which are added up in `tree`, and `optimizer`. The split of a window into
// micro-batches does not matter.
StepResult TrainStep(const StepModel& model, const StepOptions& options, const StepBatch& batch,
                     const UpdateArgs& update, LoraAdapter& adapter, GradientTree& tree,
                     Optimizer& optimizer);

}  // namespace qlora

#endif  // QLORA_STEP_STEP_H_
