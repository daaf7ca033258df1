// Reads the rotary embedding and the window of each layer from config.json. Used by config.cc.
#ifndef QLORA_CONFIG_CONFIG_LAYERS_H_
#define QLORA_CONFIG_CONFIG_LAYERS_H_

#include "config/config.h"
#include "config/config_keys.h"
#include "config/families.h"

namespace qlora {

// Fills ropes, and the mixer, window and rope of every layer; the sizes of config are set. Later
// spellings win: layer_types over the rule of the family, rope_parameters (transformers 5) over
// rope_scaling (4).
void ParseLayers(const ConfigKeys& keys, const Family& family, DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_CONFIG_CONFIG_LAYERS_H_
