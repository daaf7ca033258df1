#include "train/stop_rules.h"

#include "base/check.h"
#include "dist/together.h"

namespace qlora {

bool StopRules::AskHere() {
  // Remembered, because an observer may say yes only once, as for a signal.
  interrupted_here_ = interrupted_here_ || observer_.ShouldStop();
  return interrupted_here_;
}

bool StopRules::Ask() {
  interrupted_ = AnyRank(communicator_, AskHere());
  return interrupted_;
}

void StopRules::AskToFinish() { finishes_ = AnyRank(communicator_, observer_.ShouldFinish()); }

void StopRules::AskAfter(const TrainPosition& at) {
  // A request during the last step comes too late: the run is complete.
  if (at.step < plan_.total_steps) Ask();
}

bool StopRules::Diverged(const TrainPosition& at) const {
  return at.skipped_in_a_row >= plan_.options.max_skipped_steps;
}

bool StopRules::Ended(const TrainPosition& at) const {
  return interrupted_ || at.step >= plan_.total_steps || StoppedEarly(at);
}

void StopRules::ThrowIfDiverged(const TrainPosition& at, const StepResult& last) const {
  if (!Diverged(at)) return;
  communicator_.EndTogether();  // all ranks have the same position
  ThrowRuntime(
      "a NaN or Inf in {} consecutive steps; first bad tensor of the last step: {}. None of these "
      "steps changed the adapter, which is saved in checkpoint-{}. A lower learning_rate, a longer "
      "warm-up or a smaller max_grad_norm may help; so may a look at the data of these steps",
      at.skipped_in_a_row, last.bad_tensor, at.step);
}

}  // namespace qlora
