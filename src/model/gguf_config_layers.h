// Reads the rotary embedding and the window of each layer from a GGUF file. Used by gguf_config.cc.
#ifndef QLORA_MODEL_GGUF_CONFIG_LAYERS_H_
#define QLORA_MODEL_GGUF_CONFIG_LAYERS_H_

#include "model/config.h"
#include "model/gguf_keys.h"

namespace qlora {

// Of an LFM2: the heads of keys and values of each block; 0 tells a short convolution. Errors:
// layers with different numbers.
std::vector<std::int64_t> HeadsOfLfm(const GgufKeys& keys, std::int64_t blocks);

// Fills ropes, and the mixer, window and rope of every layer; model_type and the sizes of config
// are set. blocks: of the file, drafts included.
void ParseGgufLayers(const GgufKeys& keys, std::int64_t blocks, DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_MODEL_GGUF_CONFIG_LAYERS_H_
