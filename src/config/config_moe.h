// The keys of a mixture of experts in config.json, and what the keys of a GGUF file share with
// them. Used by config.cc and gguf_config.cc.
#ifndef QLORA_CONFIG_CONFIG_MOE_H_
#define QLORA_CONFIG_CONFIG_MOE_H_

#include <cstdint>
#include <string>

#include "config/config.h"
#include "config/config_keys.h"
#include "config/families.h"

namespace qlora {

// The width of one expert, or of the MLP where it is stated under the same key.
std::int64_t ExpertIntermediateSize(const ConfigKeys& keys, const Family& family);
// transformers 5 writes num_local_experts where earlier versions write num_experts. key: the usual
// one of the family. Errors: InvalidInput for both with two values.
std::int64_t NumberOfExperts(const ConfigKeys& keys, const char* key, std::int64_t otherwise);
// Fills config.moe; the family and the sizes of config are set.
void ParseMoe(const ConfigKeys& keys, const Family& family, DecoderConfig& config);
// Marks the layers that have an MLP in the place of experts, and sets its width.
void ParseDenseLayers(const ConfigKeys& keys, const Family& family, DecoderConfig& config);

// A number of a file and its key, for messages.
struct StatedNumber {
  const char* key;
  std::int64_t value;
};
// Gives the first `count` layers an MLP of this width in the place of experts. Errors: InvalidInput
// for more layers than there are, and for a width that no layer has.
void SetDenseLayers(const StatedNumber& count, const StatedNumber& width, const std::string& where,
                    DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_CONFIG_CONFIG_MOE_H_
