// Whether an adapter can be served with a base that others use, too.
#ifndef QLORA_SERVE_ADAPTER_CHECKS_H_
#define QLORA_SERVE_ADAPTER_CHECKS_H_

#include <cstdint>
#include <string>

#include "adapter/lora.h"
#include "inference/loaded_model.h"
#include "model/base_record.h"

namespace qlora {

// The form of a base in words: "nf4, double quantization, blocks of 64", or "as the checkpoint".
std::string DescribeForm(const BaseRecord& base);

// Errors: InvalidInput for an adapter that was trained on another form of the base than it is held
// in, naming both.
void CheckForm(const std::string& folder, const BaseRecord& trained, const LoadedModel& base);

// Errors: InvalidInput for an adapter with more than matrices of linears, naming what it has:
// tables, heads and norms are the base's for all.
void CheckParts(const std::string& folder, const LoraAdapter& adapter, const LoadedModel& base);

// The largest adapter of this rank, on every linear and with DoRA where that exists: sizes alone,
// for which passes get room. The memory must outlive it.
LoraAdapter LargestAdapter(const DecoderConfig& decoder, Memory& memory, std::int64_t rank);

// The largest rank of a linear.
std::int64_t RankOf(const LoraAdapter& adapter);

// Errors: InvalidInput for an adapter for which passes have no room.
void CheckRoom(const std::string& folder, const LoraAdapter& adapter, const LoraAdapter& largest);

}  // namespace qlora

#endif  // QLORA_SERVE_ADAPTER_CHECKS_H_
