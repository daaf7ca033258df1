// A Gemma 4 in a GGUF file, many of whose keys are lists with a number for each layer, in the words
// of config.json. Used by gguf_config_json.cc and gguf_config.cc.
#ifndef QLORA_CONFIG_GGUF_CONFIG_GEMMA4_H_
#define QLORA_CONFIG_GGUF_CONFIG_GEMMA4_H_

#include "config/config.h"
#include "config/gguf_keys.h"
#include "io/json_fwd.h"

namespace qlora {

// Heads, widths, experts: those of the first layer, and of heads in layers without a window.
void AddGgufGemma4Sizes(const GgufKeys& keys, Json& json);
// Needs the sizes in `json`.
void AddGgufGemma4Layers(const GgufKeys& keys, Json& json);

// What the file says of single layers beyond that.
void SetGgufGemma4Layers(const GgufKeys& keys, DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_CONFIG_GGUF_CONFIG_GEMMA4_H_
