// From train options to what the run is made of.
#ifndef QLORA_TRAIN_RECIPE_H_
#define QLORA_TRAIN_RECIPE_H_

#include "io/peft_config.h"
#include "model/config.h"
#include "qlora/train.h"
#include "train/optimizer.h"

namespace qlora {

// Errors: InvalidInput naming the option, for values that no run can have.
void CheckOptions(const TrainOptions& options);

// The adapter that the options describe.
// Errors: InvalidInput for modules and layers that the model does not have.
AdapterConfig ToAdapterConfig(const TrainOptions& options, const DecoderConfig& decoder);

OptimizerType OptimizerOf(const TrainOptions& options);
UpdateArgs UpdateArgsOf(const TrainOptions& options);
GroupRates GroupRatesOf(const TrainOptions& options);

}  // namespace qlora

#endif  // QLORA_TRAIN_RECIPE_H_
