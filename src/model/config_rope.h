// The rotary tables that config.json describes.
#ifndef QLORA_MODEL_CONFIG_ROPE_H_
#define QLORA_MODEL_CONFIG_ROPE_H_

#include "io/json_fwd.h"
#include "model/config.h"
#include "model/config_keys.h"
#include "model/families.h"

namespace qlora {

// `scaling` is rope_scaling (transformers 4) or one rope_parameters dictionary (5), or null. Errors
// name the file, which of the two it is, and its key.
RopeConfig ParseRope(const Json* scaling, double theta, const ConfigKeys& model,
                     const Family& family, const DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_MODEL_CONFIG_ROPE_H_
