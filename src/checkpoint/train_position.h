// How far a run has come. A checkpoint stores this as trainer_state.json, so that a resumed run
// continues as if it had never stopped.
#ifndef QLORA_CHECKPOINT_TRAIN_POSITION_H_
#define QLORA_CHECKPOINT_TRAIN_POSITION_H_

#include <cstdint>
#include <string>

#include "checkpoint/best_evaluation.h"
#include "data/batch_stream.h"
#include "io/json_fwd.h"
#include "qlora/train_options.h"
#include "step/loss_rise.h"
#include "step/loss_spikes.h"
#include "step/step.h"

namespace qlora {

struct TrainPosition {
  std::int64_t step = 0;              // optimizer steps done
  std::int64_t micro_step = 0;        // micro-batches done, without anchors
  std::int64_t epoch = 0;             // epoch of the next micro-batch
  std::int64_t epoch_batch = 0;       // micro-batches of that epoch already done
  std::int64_t tokens = 0;            // supervised tokens seen
  std::int64_t skipped_steps = 0;     // steps whose loss or gradient was not finite
  std::int64_t skipped_in_a_row = 0;  // such steps since the last one that was applied
  bool eval_due = false;              // the evaluation of this step is not done yet
  std::int64_t sampled_step = -1;     // step of the newest sample texts
  double loss_sum = 0;                // over the steps that changed the adapter
  std::int64_t loss_steps = 0;        // their number
  LossSpikes losses;
  LossStart start;
  BestEvaluation best;
  bool loss_spike = false;  // the loss of the last step is a spike; not stored

  DataCursor cursor() const { return {epoch, epoch_batch}; }
  // Over the steps of the run that changed the adapter; NaN if there was none. In a run whose
  // checkpoint is of an earlier version, over those since.
  double mean_loss() const;
  // The position after one more step, with the data at `next`. start_steps: StartSteps of the run.
  void Advance(const StepBatch& batch, const StepResult& result, const DataCursor& next,
               std::int64_t start_steps);
};

// True after early_stopping_patience evaluations in a row that were not better than the best.
bool StopsEarly(const TrainOptions& options, const TrainPosition& at);

Json PositionToJson(const TrainPosition& position);
// Errors: InvalidInput when a key is missing, or no run can have such a value.
TrainPosition PositionFromJson(const Json& state, const std::string& where);

}  // namespace qlora

#endif  // QLORA_CHECKPOINT_TRAIN_POSITION_H_
