// A run that is decided and not started: PlanTraining makes it, Train uses it.
//
// train_plan.cc reads config.json, tokenizer and data and returns a TrainPlan, a value. The verbs
// plan, validate and train print it through one function (cli/training/run_check.h). Everything
// that can be known before weights are read is checked here:
//
//   train_options.cc        names, help texts and presets of the options
//   check_options.h         ranges, and options that have no effect
//   new_adapter.h, continued_adapter.h, target_modules.h   the adapter that is trained
//   run_data.h              training and evaluation data; warnings: data/dataset_report.h
//   sample_prompts.h        the prompts of samples
//   memory_plan.h           the peak of memory, computed by the code that lays memory out
//   fit_memory.h            the recomputation and offloading with which a run fits
//   disk_plan.h, run_folder.h   room on the disk, and the folder of the run
//
// shape_plan.cc plans memory without data, from a config.json or from the names in
// hub/known_models.h.
#ifndef QLORA_PLAN_PREPARED_RUN_H_
#define QLORA_PLAN_PREPARED_RUN_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "backend/backend_factory.h"
#include "dist/folder_copy.h"
#include "io/json_fwd.h"
#include "model/base_record.h"
#include "model/config.h"
#include "model/weights.h"
#include "plan/fit_memory.h"
#include "plan/memory_plan.h"
#include "plan/run_data.h"
#include "plan/sample_prompts.h"
#include "qlora/context.h"
#include "qlora/train_plan.h"
#include "step/schedule.h"
#include "step/step.h"

namespace qlora {

struct PreparedRun {
  PlanPurpose purpose = PlanPurpose::kTraining;
  BackendFactory::Ptr backends;
  std::optional<std::filesystem::path> checkpoint;  // to resume from
  std::shared_ptr<const FolderCopy> copy;           // of the checkpoint, where rank 0 alone has it
  RankPlace place;
  std::vector<IndexRange> stages;  // the layers of each
  // The base model.
  std::filesystem::path model_dir;
  DecoderConfig config;
  Precision precision;
  BaseRecord base;
  LoadOptions load;
  std::uint64_t model_fingerprint = 0;
  // The data, which plans of the same run share.
  std::shared_ptr<const RunData> data;
  SamplePrompts prompts;
  // The steps.
  Schedule schedule;
  StepOptions step;
  ActivationNeeds needs;
  std::int64_t positions = 0;  // positions of the longest sequence
};

// The options and fingerprints that a checkpoint of the run records.
Json RecordedOptions(const TrainPlan& plan);

}  // namespace qlora

#endif  // QLORA_PLAN_PREPARED_RUN_H_
