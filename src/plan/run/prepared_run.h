// A run that is decided and not started: PlanTraining makes it, Train uses it.
//
// Four values follow one another, each made of the options and the ones before it, with its notes:
//
//   run_start.h   the checkpoint to resume from (run_folder.h), the ranks and their backends
//   run_base.h    the model's configuration and weights, and the adapter that is trained
//                 (new_adapter.h, continued_adapter.h, target_modules.h)
//   run_data.h    training and evaluation data, prompts of samples (sample_prompts.h)
//   run_fit.h     the steps, the peak of memory (memory_plan.h), computed by the code that lays
//                 memory out, with the recomputation with which the run fits (fit_memory.h), and
//                 room on the disk (disk_plan.h)
//
// train_plan.cc makes them and returns a TrainPlan, a value. The verbs plan, validate and train
// print it through one function (cli/training/run_check.h). Everything that can be known before
// weights are read is checked here; options alone are in train_options.cc (names, help texts,
// presets) and check_options.h (ranges, options without effect).
//
// shape_plan.cc plans memory without data, from a config.json or from the names in
// hub/known_models.h.
#ifndef QLORA_PLAN_RUN_PREPARED_RUN_H_
#define QLORA_PLAN_RUN_PREPARED_RUN_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "io/json_fwd.h"
#include "model/base_record.h"
#include "plan/run/run_base.h"
#include "plan/run/run_data.h"
#include "plan/run/run_fit.h"
#include "plan/run/run_start.h"
#include "qlora/train_plan.h"

namespace qlora {

struct PreparedRun {
  RunStart start;
  RunBase base;
  std::shared_ptr<const RunData> data;  // which plans of the same run share
  RunSteps steps;
};

// What the adapter of the run records of its base and its prompts.
BaseRecord RecordedBase(const PreparedRun& run);

// The options and fingerprints that a checkpoint of the run records. weights: HashWeights, as soon
// as it is known.
Json RecordedOptions(const TrainPlan& plan, std::optional<std::uint64_t> weights = {});

}  // namespace qlora

#endif  // QLORA_PLAN_RUN_PREPARED_RUN_H_
