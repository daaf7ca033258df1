// A Gemma 4 in a GGUF file, many of whose keys are lists with a number for each layer, in the words
// of config.json, and the way back. WriteGgufWindows and WriteGgufRope write the rest.
#ifndef QLORA_CONFIG_GGUF_CONFIG_GEMMA4_H_
#define QLORA_CONFIG_GGUF_CONFIG_GEMMA4_H_

#include <string>

#include "config/config.h"
#include "config/gguf_keys.h"
#include "gguf/gguf.h"
#include "io/json_fwd.h"

namespace qlora {

// Heads, widths, experts: those of the first layer, and of heads in layers without a window.
void ReadGgufGemma4Sizes(const GgufKeys& keys, Json& json);
// Needs the sizes in `json`.
void ReadGgufGemma4Layers(const GgufKeys& keys, Json& json);

// prefix: the architecture and a dot.
void WriteGgufGemma4(const DecoderConfig& config, const std::string& prefix, GgufMetadata& out);

// What the file says of single layers beyond that.
void SetGgufGemma4Layers(const GgufKeys& keys, DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_CONFIG_GGUF_CONFIG_GEMMA4_H_
