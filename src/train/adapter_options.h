// The adapter that the options of a run describe (adapter_options.cc), and the options that an
// adapter on disk decides when training continues it (continued_adapter.cc).
#ifndef QLORA_TRAIN_ADAPTER_OPTIONS_H_
#define QLORA_TRAIN_ADAPTER_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "io/peft_config.h"
#include "model/config.h"
#include "model/lora.h"
#include "qlora/train.h"

namespace qlora {

// Errors: InvalidInput for a rank above the largest that is supported.
void CheckRank(const char* key, std::int64_t rank);

// The configuration that the options describe. Errors: InvalidInput for names, patterns and layers
// that match nothing in this model.
AdapterConfig ToAdapterConfig(const TrainOptions& options, const DecoderConfig& decoder);

// The adapter of a run, which will allocate its matrices in `memory`: the new adapter that the
// options describe, or the one in options.adapter, which training continues. Errors: InvalidInput
// as ToAdapterConfig, and when an option needs something that the adapter does not have.
LoraAdapter DescribeAdapter(const TrainOptions& options, const DecoderConfig& decoder,
                            Memory& memory);

// lora_target_modules and exclude_modules: a single entry that is not a plain name is "all-linear"
// or a regular expression.
ModuleSelection ToSelection(const std::vector<std::string>& modules);
// {"4-7"} -> 4, 5, 6, 7. Errors: InvalidInput beyond the `layers` of the model.
std::vector<std::int64_t> ToLayers(const std::vector<std::string>& ranges, std::int64_t layers);
// The names of the linears of a layer, without the layer: "q_proj", sorted.
std::vector<std::string> LinearNamesOf(const DecoderConfig& decoder);

// With options.adapter: gives the options that describe an adapter and are not set the values of
// that adapter. Errors: InvalidInput for an option that is set to another value.
void ApplyAdapter(const TrainOptions& options, OptionTable& table);

// The same without a table: an option that differs from its default counts as set. Returns the
// options with those values.
TrainOptions WithAdapter(const TrainOptions& options);

}  // namespace qlora

#endif  // QLORA_TRAIN_ADAPTER_OPTIONS_H_
