// How a run fits its machine: the memory and disk space that it needs, and its steps.
#ifndef QLORA_PLAN_RUN_RUN_FIT_H_
#define QLORA_PLAN_RUN_RUN_FIT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/memory_plan.h"
#include "plan/run/run_base.h"
#include "plan/run/run_data.h"
#include "plan/run/run_start.h"
#include "qlora/context.h"
#include "qlora/train_options.h"
#include "qlora/train_plan.h"
#include "step/schedule.h"
#include "step/step.h"

namespace qlora {

struct RunSteps {
  Schedule schedule;
  StepOptions step;  // what all steps share
  ActivationNeeds needs;
  std::int64_t positions = 0;  // of the longest sequence
};

struct RunFit {
  RunSteps steps;
  MemoryPlan memory;
  DiskPlan disk;
  RankPlan ranks;
  std::optional<ResumePoint> resume;
  std::vector<std::string> notes;  // some may be ""
};

// Errors: InvalidInput for more steps than dropout has random numbers, a checkpoint of another run,
// an adapter or a reference whose values cannot be read, and steps of one prompt where answers to
// others are needed.
RunFit FitRun(Context& context, const TrainOptions& options, const RunStart& start,
              const RunBase& base, const RunData& data);

}  // namespace qlora

#endif  // QLORA_PLAN_RUN_RUN_FIT_H_
