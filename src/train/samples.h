// Texts that the model writes during training, for people to read (sample_prompts).
#ifndef QLORA_TRAIN_SAMPLES_H_
#define QLORA_TRAIN_SAMPLES_H_

#include <optional>
#include <vector>

#include "log/run_log.h"
#include "pass/state_pool.h"
#include "qlora/model.h"
#include "qlora/train_plan.h"
#include "train/loaded_run.h"

namespace qlora {

// Continues every prompt before and after training and every sample_steps steps. Changes nothing of
// the run; the same weights give the same texts.
class Samples {
 public:
  Samples(const TrainPlan& plan, LoadedRun& loaded, RunLog& log);

  // True after every sample_steps steps but the last step, after which samples are always written.
  bool IsDue(const TrainPosition& at) const;
  // Writes a text for every prompt to the log, once for each step.
  void Write(TrainPosition& at);

 private:
  // What follows each prompt.
  std::vector<GenerateReport> Texts();

  const TrainPlan& plan_;
  LoadedRun& loaded_;
  RunLog& log_;
  std::optional<PoolMemory> pool_;
};

}  // namespace qlora

#endif  // QLORA_TRAIN_SAMPLES_H_
