// The keys of config.json that Gemma 4 alone has. Used by config.cc.
#ifndef QLORA_MODEL_CONFIG_GEMMA4_H_
#define QLORA_MODEL_CONFIG_GEMMA4_H_

#include "model/config.h"
#include "model/config_keys.h"
#include "model/families.h"

namespace qlora {

// The sizes and scales of the whole model.
void ParseGemma4(const ConfigKeys& keys, const Family& family, DecoderConfig& config);

// In the place of ParseLayers: layers with a window and layers that see everything differ in their
// heads and in their rotary table; the last layers may attend to the keys and values of earlier
// ones.
void ParseGemma4Layers(const ConfigKeys& keys, const Family& family, DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_MODEL_CONFIG_GEMMA4_H_
