// The log-probabilities of a run's answers under its reference: measured before the first step,
// kept in output_dir, and taken from there when the run resumes.
#ifndef QLORA_TRAIN_REFERENCE_H_
#define QLORA_TRAIN_REFERENCE_H_

#include "checkpoint/train_position.h"
#include "inference/dataset_evaluation.h"
#include "qlora/context.h"
#include "qlora/train.h"
#include "train/loaded_run.h"
#include "train/stop_rules.h"

namespace qlora {

// Leaves in loaded.reference what the rest of the run visits, and its evaluations. Does nothing
// when the objective needs no reference; an interruption leaves it incomplete, and stays to be
// asked for.
void MeasureReference(Context& context, const TrainPlan& plan, const TrainPosition& at,
                      LoadedRun& loaded, StopRules& stop, TrainObserver& observer);

}  // namespace qlora

#endif  // QLORA_TRAIN_REFERENCE_H_
