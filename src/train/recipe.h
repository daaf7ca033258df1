// From train options to what the run is made of.
#ifndef QLORA_TRAIN_RECIPE_H_
#define QLORA_TRAIN_RECIPE_H_

#include "io/peft_config.h"
#include "qlora/train.h"

namespace qlora {

// Errors: InvalidInput naming the option, for values that no run can have.
void CheckOptions(const TrainOptions& options);

// The adapter that the options describe.
AdapterConfig ToAdapterConfig(const TrainOptions& options);

}  // namespace qlora

#endif  // QLORA_TRAIN_RECIPE_H_
