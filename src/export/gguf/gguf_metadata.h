// What a GGUF file says of a decoder: its keys, and how its linears are written.
#ifndef QLORA_EXPORT_GGUF_GGUF_METADATA_H_
#define QLORA_EXPORT_GGUF_GGUF_METADATA_H_

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "gguf/gguf.h"
#include "model/linear_shapes.h"

namespace qlora {

// Returns the llama.cpp architecture of a model family. Errors: InvalidInput when llama.cpp lacks
// the family, or computes it differently from Hugging Face.
std::string GgufArchitectureOf(const DecoderConfig& config);

// Adds the keys that describe the decoder.
void AddModelMetadata(const DecoderConfig& config, const std::string& name, std::uint32_t file_type,
                      GgufMetadata& out);

// Divisors of the rotary frequencies that are stored as tensors: {name, values (K_rot/2)}.
struct RopeFactors {
  std::string name;
  std::vector<float> values;
};
std::vector<RopeFactors> GgufRopeFactors(const DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_EXPORT_GGUF_GGUF_METADATA_H_
