// The adapter that the options of a run describe.
#ifndef QLORA_PLAN_NEW_ADAPTER_H_
#define QLORA_PLAN_NEW_ADAPTER_H_

#include <cstdint>

#include "adapter/lora.h"
#include "config/config.h"
#include "io/peft/peft_config.h"
#include "qlora/train_options.h"

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

// The warning about ranks above the smaller side of their weight, or "".
std::string WarnOfRanks(const LoraAdapter& adapter);
// The warning about modules that PEFT does not read beside adapters of experts, or "".
std::string WarnOfUnevenExperts(const LoraAdapter& adapter);

}  // namespace qlora

#endif  // QLORA_PLAN_NEW_ADAPTER_H_
