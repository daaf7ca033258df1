// Evaluation on the held-out data during training: when, and which evaluation is the best.
#ifndef QLORA_TRAIN_EVALUATION_H_
#define QLORA_TRAIN_EVALUATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/train_position.h"
#include "data/dataset.h"
#include "inference/answer_meter.h"
#include "log/run_log.h"
#include "qlora/train.h"
#include "step/interval.h"
#include "train/loaded_run.h"
#include "train/stop_rules.h"

namespace qlora {

class Evaluation {
 public:
  // Without held-out data no evaluation is ever due.
  Evaluation(const TrainPlan& plan, LoadedRun& loaded, StopRules& stop, RunLog& log);

  // True before the first step with eval_on_start.
  bool IsDueOnStart(const TrainPosition& at) const;
  // True after the last step, and as often as eval_steps, eval_ratio or evals_per_epoch say.
  bool IsDueAfter(const StepPlace& place) const;

  // Evaluates when at.eval_due. An evaluation that is interrupted stays due, so that the resumed
  // run does it. Returns true when the evaluation is the best so far.
  bool Run(TrainPosition& at);

 private:
  // A file of eval_dataset.
  struct Part {
    std::string name;
    Dataset data;
  };

  // before: samples that are done, for the progress.
  AnswerMeter MeterFrom(std::int64_t before);
  // Nothing when the run is to stop.
  std::optional<EvalReport> MeasureAll();
  std::optional<double> MeasureKl();
  EvalProgress ProgressFrom(std::int64_t before);

  const TrainPlan& plan_;
  LoadedRun& loaded_;
  StopRules& stop_;
  RunLog& log_;
  std::vector<Part> parts_;  // empty: all data are one part
};

}  // namespace qlora

#endif  // QLORA_TRAIN_EVALUATION_H_
