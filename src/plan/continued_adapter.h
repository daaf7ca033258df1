// The options that an adapter on disk decides when training continues it.
#ifndef QLORA_PLAN_CONTINUED_ADAPTER_H_
#define QLORA_PLAN_CONTINUED_ADAPTER_H_

#include "qlora/options.h"
#include "qlora/train_options.h"

namespace qlora {

// With options.adapter: gives the options that describe an adapter and are not set the values of
// that adapter. Errors: InvalidInput for an option that is set to another value.
void ApplyAdapter(const TrainOptions& options, OptionTable& table);

// The same without a table: an option that differs from its default counts as set. Returns the
// options with those values.
TrainOptions WithAdapter(const TrainOptions& options);

}  // namespace qlora

#endif  // QLORA_PLAN_CONTINUED_ADAPTER_H_
