// What a run of decisions leaves besides its adapter: their template and letters, temperatures, and
// a judgement of its answers.
#ifndef QLORA_TRAIN_DECISION_FINISH_H_
#define QLORA_TRAIN_DECISION_FINISH_H_

#include <filesystem>
#include <string>

#include "decision/decision_temperature.h"
#include "qlora/train.h"
#include "train/loaded_run.h"

namespace qlora {

// Of a run of decisions: writes their template, and the temperatures, to decision.json in `dir`.
// fitted_on: names the data of the temperatures.
void WriteDecisions(const TrainPlan& plan, const std::filesystem::path& dir,
                    const Temperatures& temperatures = {}, const std::string& fitted_on = {});

// Of a run of decisions without pipeline stages, on rank 0, with the adapter of the result: fits
// temperatures to the calibration data and keeps them beside it, then judges the answers to the
// evaluation data. Communicates nothing.
DecisionFinish FinishDecisions(const TrainPlan& plan, LoadedRun& loaded);

}  // namespace qlora

#endif  // QLORA_TRAIN_DECISION_FINISH_H_
