// A 4-bit checkpoint of the base of training runs: the first run makes it, later runs load it.
//
//   FindQuantizedBase     takes the checkpoint as the base of the run; true: it must be made
//   PlanTraining          errors of the run are found before that work, which takes
//   CheckPlan             minutes, and a run that does not fit is refused
//   MakeQuantizedBase     makes the checkpoint
//   PlanOnQuantizedBase   the plan of the same run on the checkpoint
//   Train                 train.h
#ifndef QLORA_QUANTIZED_BASE_H_
#define QLORA_QUANTIZED_BASE_H_

#include <string>

#include "qlora/context.h"
#include "qlora/train_options.h"
#include "qlora/train_plan.h"

namespace qlora {

// Makes `options` train on the checkpoint in `folder` where there is one. Returns true when the
// checkpoint must be made first; the options are unchanged then, and for the folder "", with which
// no checkpoint is wanted. Errors: InvalidInput when the folder holds something else, or a
// checkpoint that was made from other files or with other quantization options; when it and
// output_dir are not side by side; without load_in_4bit.
bool FindQuantizedBase(const std::string& folder, TrainOptions& options);

// Quantizes the model of `options` into `folder`, which appears when the checkpoint is complete.
// options: as FindQuantizedBase left them. Errors: as QuantizeCheckpoint.
void MakeQuantizedBase(Context& context, const std::string& folder, const TrainOptions& options,
                       const ProgressFn& progress = {});

// The plan of the same run on the checkpoint that MakeQuantizedBase has written. The data are not
// read again. Errors: as ChangeBase, with Runtime for InvalidInput because files were written.
TrainPlan PlanOnQuantizedBase(Context& context, const TrainPlan& plan, const std::string& folder);

}  // namespace qlora

#endif  // QLORA_QUANTIZED_BASE_H_
