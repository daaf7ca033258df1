// The keys of config.json that Gemma 4 alone has. Used by config.cc.
#ifndef QLORA_CONFIG_CONFIG_GEMMA4_H_
#define QLORA_CONFIG_CONFIG_GEMMA4_H_

#include "config/config.h"
#include "config/config_keys.h"
#include "config/families.h"

namespace qlora {

// The sizes and scales of the whole model.
void ParseGemma4(const ConfigKeys& keys, const Family& family, DecoderConfig& config);

// In the place of ParseLayers: layers with a window and layers that see everything differ in their
// heads and in their rotary table; the last layers may attend to the keys and values of earlier
// ones.
void ParseGemma4Layers(const ConfigKeys& keys, const Family& family, DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_CONFIG_CONFIG_GEMMA4_H_
