// A training run as the verbs `train` and `resume` show it.
#ifndef QLORA_CLI_TRAINING_TRAINING_RUN_H_
#define QLORA_CLI_TRAINING_TRAINING_RUN_H_

#include <functional>

#include "command/verb.h"
#include "qlora/train_plan.h"
#include "training/train_settings.h"

namespace qlora {

// Plans the run, trains, and reports the end of the run and the next steps; with `json` also as an
// object on console.out. check: called with the plan before the plan is shown; throws to refuse the
// run. Returns the exit code. Errors: as PlanTraining and Train; Runtime for a run that has
// diverged. ranks: train together; console is that of this rank.
int RunTraining(const Console& console, Communicator& ranks, TrainSettings& settings, bool json,
                const std::function<void(const TrainPlan&)>& check);

}  // namespace qlora

#endif  // QLORA_CLI_TRAINING_TRAINING_RUN_H_
