// When a run ends before its last step: an interruption, divergence, or early stopping, whose rule
// is StopsEarly in checkpoint/train_position.h.
#ifndef QLORA_TRAIN_STOP_RULES_H_
#define QLORA_TRAIN_STOP_RULES_H_

#include "checkpoint/train_position.h"
#include "qlora/communicator.h"
#include "qlora/train.h"

namespace qlora {

class StopRules {
 public:
  StopRules(const TrainPlan& plan, Communicator& communicator, TrainObserver& observer)
      : plan_(plan), communicator_(communicator), observer_(observer) {}

  // Asks the observers of all ranks. Once one has said yes, the run is interrupted.
  bool Ask();
  // Asks after a step, unless that step was the last.
  void AskAfter(const TrainPosition& at);
  // Asks the observers of all ranks for the wish that Finishes tells.
  void AskToFinish();
  // Asks the observer of this rank alone, and remembers its answer for the next Ask.
  bool AskHere();

  bool interrupted() const { return interrupted_; }
  // max_skipped_steps steps in a row were skipped.
  bool Diverged(const TrainPosition& at) const;
  // The run ends with a checkpoint, before its result is complete.
  bool BreaksOff(const TrainPosition& at) const { return interrupted_ || Diverged(at); }
  // An observer wants the result now.
  bool Finishes() const { return finishes_; }
  bool StoppedEarly(const TrainPosition& at) const {
    return StopsEarly(plan_.options, at) || (at.step < plan_.total_steps && Finishes());
  }
  // The loop is over: an interruption, early stopping, or all steps are done.
  bool Ended(const TrainPosition& at) const;

  // Errors: Runtime when the run has diverged; the message names remedies.
  void ThrowIfDiverged(const TrainPosition& at, const StepResult& last) const;

 private:
  const TrainPlan& plan_;
  Communicator& communicator_;
  TrainObserver& observer_;
  bool interrupted_here_ = false;  // the observer of this rank has said so
  bool interrupted_ = false;
  bool finishes_ = false;
};

}  // namespace qlora

#endif  // QLORA_TRAIN_STOP_RULES_H_
