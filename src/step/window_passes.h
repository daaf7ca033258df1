// The passes of a window on one rank: forward and backward, one micro-batch after the other, or, in
// a stage of a pipeline, as they come from the stages before and behind it.
#ifndef QLORA_STEP_WINDOW_PASSES_H_
#define QLORA_STEP_WINDOW_PASSES_H_

#include <cstdint>
#include <vector>

#include "dist/rank_place.h"
#include "pass/decoder.h"
#include "step/step.h"

namespace qlora {

class WindowPasses {
 public:
  // The arguments must outlive this. base: of the window's anchor (anchor_base.h). Sums of the
  // micro-batches of this rank are written to `sums`.
  WindowPasses(const StepModel& model, const RankPlace& place, const StepOptions& options,
               const StepBatch& window, const ConstMatrixView& base, LoraAdapter& adapter,
               WindowSums& sums);

  // Does what the schedule says next, after the bytes for it have come from the neighbours. begins:
  // called with the number of a micro-batch in the window before its first gradient; ends: after
  // its last.
  template <typename Begin, typename End>
  void Run(const Begin& begins, const End& ends) {
    for (const StageOp& op : schedule_) {
      Receive(op);
      const std::int64_t index = window_.micro_batches[op.micro_batch].index;
      // The last stage has a gradient already of its head, and goes back at once.
      if (op.backward != place_.is_last_stage()) begins(index);
      if (op.backward) {
        RunBackward(op.micro_batch);
        ends(index);
      } else {
        RunForward(op.micro_batch);
      }
    }
    Send();
  }

 private:
  // A micro-batch between its forward pass and its backward pass.
  struct Pass {
    Activations activations;
    PassInputs inputs;
    bool has_loss_gradient = false;  // in the last stage: dx is that of a finite loss
  };
  // Bytes that wait to be sent to another rank.
  struct Message {
    int to = -1;  // none
    MatrixView values;
  };

  Pass& At(std::int64_t micro_batch);
  void Prepare(std::int64_t micro_batch);
  // Sends what the last op has made and receives what `op` needs, at once, so that no two ranks
  // wait for one another.
  void Receive(const StageOp& op);
  void Send();
  void Exchange(int from, const MatrixView& values);
  void RunForward(std::int64_t micro_batch);
  void RunBackward(std::int64_t micro_batch);

  const StepModel& model_;
  const RankPlace& place_;
  const StepOptions& options_;
  const StepBatch& window_;
  ConstMatrixView base_;
  LoraAdapter& adapter_;
  WindowSums& sums_;
  std::vector<StageOp> schedule_;
  AdapterSizes sizes_;
  std::vector<Pass> passes_;  // as many as are on their way at a time
  Message message_;
};

}  // namespace qlora

#endif  // QLORA_STEP_WINDOW_PASSES_H_
