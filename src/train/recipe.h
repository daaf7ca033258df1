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
// Errors: InvalidInput for the first of options.Idle().
void CheckIdle(const TrainOptions& options);

// Errors: InvalidInput beyond the largest rank that there can be.
void CheckRank(const char* key, std::int64_t rank);

// The adapter that the options describe. Errors: InvalidInput for names, patterns and layers that
// mean nothing in this model.
AdapterConfig ToAdapterConfig(const TrainOptions& options, const DecoderConfig& decoder);

// Where training goes on from options.adapter: gives the options that describe an adapter, and that
// are not set, its values. Errors: InvalidInput for one that is set to another value.
void ApplyAdapter(const TrainOptions& options, OptionTable& table);
// The same without a table: an option that differs from its default counts as set. Returns the
// options with those values.
TrainOptions WithAdapter(const TrainOptions& options);

OptimizerType OptimizerOf(const TrainOptions& options);
UpdateArgs UpdateArgsOf(const TrainOptions& options);
GroupRates GroupRatesOf(const TrainOptions& options);

}  // namespace qlora

#endif  // QLORA_TRAIN_RECIPE_H_
