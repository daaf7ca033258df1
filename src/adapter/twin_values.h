// Adapters between two families that are one architecture in GGUF files and cut the MLP otherwise:
// the checkpoint of a Granite 4 without Mamba (granitemoehybrid) has gate and up in one linear,
// and its GGUF file is that of a granite, which has two.
//
//   one to two   both have A of the one, and each its rows of B
//   two to one   A of both one above the other, B of each in its rows and columns:
//                twice the rank, unless A is the same
#ifndef QLORA_ADAPTER_TWIN_VALUES_H_
#define QLORA_ADAPTER_TWIN_VALUES_H_

#include <filesystem>
#include <optional>

#include "adapter/lora_values.h"
#include "config/config.h"

namespace qlora {

// The decoder as the other family has it; nothing where no family is another cut of this one.
std::optional<DecoderConfig> TwinOf(const DecoderConfig& decoder);

// The twin whose modules a folder of PEFT names; nothing where it names those of the decoder.
std::optional<DecoderConfig> TwinOfAdapter(const std::filesystem::path& folder,
                                           const DecoderConfig& decoder);

// The values of an adapter of `from` as one of its twin `to`. Errors: InvalidInput for a DoRA
// adapter of one of two linears that are one in the twin.
AdapterValues ToTwin(AdapterValues values, const DecoderConfig& from, const DecoderConfig& to);

}  // namespace qlora

#endif  // QLORA_ADAPTER_TWIN_VALUES_H_
