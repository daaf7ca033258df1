// The keys of a GGUF file that Gemma 4 alone has, many of which are lists with a number for each
// layer. Used by gguf_config.cc.
#ifndef QLORA_MODEL_GGUF_CONFIG_GEMMA4_H_
#define QLORA_MODEL_GGUF_CONFIG_GEMMA4_H_

#include <cstdint>

#include "model/config.h"
#include "model/gguf_keys.h"

namespace qlora {

// The sizes of the model: those of its first layer, and of heads of layers with a window.
void ParseGemma4Sizes(const GgufKeys& keys, std::int64_t blocks, DecoderConfig& config);

// In the place of ParseGgufLayers.
void ParseGemma4GgufLayers(const GgufKeys& keys, std::int64_t blocks, DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_MODEL_GGUF_CONFIG_GEMMA4_H_
