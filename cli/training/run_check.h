// Checks a training run without starting it: the one check behind `plan`, `validate` and
// `train --dry-run`.
#ifndef QLORA_CLI_TRAINING_RUN_CHECK_H_
#define QLORA_CLI_TRAINING_RUN_CHECK_H_

#include <string>

#include "command/common.h"
#include "qlora/int8_gain.h"
#include "qlora/train.h"
#include "training/train_settings.h"

namespace qlora {

// Returns the plan as lines of text: data, memory, disk, steps.
std::string FormatPlan(const TrainPlan& plan, const TimeEstimate& time);
// Returns "prompt layout: the chat template", and that sample_prompts get it.
std::string FormatLayout(const TrainPlan& plan);
// Returns the rule of the learning rate for a run that resumes with another number of steps than
// before; "" for all other runs.
std::string FormatNewSchedule(const TrainPlan& plan);
// Returns "steps: 188 (warm-up 6), about 4:05 here; int8 2:10, int8_backward 1:40", the last
// two for quantized weights. time: EstimateTime.
std::string FormatSteps(const TrainPlan& plan, const TimeEstimate& time);
// Returns "products with quantized weights 6.9 times as fast as with compute_dtype auto, of
// gradients 5.1 times; the rest of a step is no faster".
std::string FormatInt8Gain(const Int8Gain& gain);
// The same as the value of "int8_speedup".
OrderedJson Int8GainToJson(const Int8Gain& gain);
// Returns a memory plan as lines of text, the last of them the peak.
std::string FormatMemory(const MemoryPlan& plan);
// Returns how several ranks share the steps, a line; "" for a run of one process.
std::string FormatRanks(const RankPlan& plan);
// Returns "disk: 4.1 MiB needed in ..., 80.2 GiB free".
std::string FormatDisk(const DiskPlan& disk);

// Makes every check that `train` makes before it starts, and prints the findings: text, or one JSON
// object with "ok". Writes nothing. purpose: kTraining, or kReading. Without a dataset, only the
// memory and disk space of a model whose shape is known are checked. Errors: as PlanTraining or
// PlanShape; after the plan has been printed, as CheckPlan. world_size: the ranks that the run is
// planned for.
void CheckRun(const Console& console, TrainSettings settings, PlanPurpose purpose, int world_size,
              bool json);

}  // namespace qlora

#endif  // QLORA_CLI_TRAINING_RUN_CHECK_H_
