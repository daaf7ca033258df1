// Checks a training run without starting it.
#ifndef QLORA_CLI_RUN_CHECK_H_
#define QLORA_CLI_RUN_CHECK_H_

#include <string>

#include "common.h"
#include "qlora/train.h"

namespace qlora {

// Peaks and parts in bytes.
Json PlanToJson(const MemoryPlan& plan);

// "disk: 4.1 MiB needed in ..., 80.2 GiB free".
std::string FormatDisk(const DiskPlan& disk);

// Plans a run and prints the data and the memory that it needs: text, or the JSON of the plan.
// Writes nothing. Errors: those of PlanTraining, after what was found until then has been printed.
void ShowPlan(const Console& console, const TrainOptions& options, bool json);

// Checks configuration, model, data, memory and disk space as `train` does before it starts, and
// prints what was found: text, or one JSON object with "ok". Writes nothing. Errors: those of
// PlanTraining, after what was found until then has been printed.
void CheckRun(const Console& console, const TrainOptions& options, bool json);

}  // namespace qlora

#endif  // QLORA_CLI_RUN_CHECK_H_
