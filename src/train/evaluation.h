// Evaluation on the held-out data during training: when, and which evaluation is the best.
#ifndef QLORA_TRAIN_EVALUATION_H_
#define QLORA_TRAIN_EVALUATION_H_

#include "checkpoint/train_position.h"
#include "log/run_log.h"
#include "qlora/train.h"
#include "train/loaded_run.h"
#include "train/stop_rules.h"

namespace qlora {

class Evaluation {
 public:
  // Without held-out data no evaluation is ever due.
  Evaluation(const TrainPlan& plan, LoadedRun& loaded, StopRules& stop, RunLog& log)
      : plan_(plan), loaded_(loaded), stop_(stop), log_(log) {}

  // True before the first step with eval_on_start.
  bool IsDueOnStart(const TrainPosition& at) const;
  // True after the last step, and every eval_steps steps or at the end of every epoch.
  bool IsDueAfter(const TrainPosition& at) const;

  // Evaluates when at.eval_due. An evaluation that is interrupted stays due, so that the resumed
  // run does it. Returns true when the evaluation is the best so far.
  bool Run(TrainPosition& at);

 private:
  const TrainPlan& plan_;
  LoadedRun& loaded_;
  StopRules& stop_;
  RunLog& log_;
};

}  // namespace qlora

#endif  // QLORA_TRAIN_EVALUATION_H_
