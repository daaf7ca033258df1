// The rotary tables that config.json describes.
#ifndef QLORA_CONFIG_CONFIG_ROPE_H_
#define QLORA_CONFIG_CONFIG_ROPE_H_

#include <string>

#include "config/config.h"
#include "config/config_keys.h"
#include "config/families.h"
#include "io/json_fwd.h"

namespace qlora {

// Of layers of one kind, where the settings do not say otherwise.
struct RopeDefaults {
  double theta = 0;
  const char* theta_key = nullptr;  // outside of the settings, which they must not contradict
  double partial = 1;               // partial_rotary_factor
  std::int64_t head_dim = 0;
};

// `scaling` is rope_scaling (transformers 4) or one rope_parameters dictionary (5), or null. Errors
// name the file, which of the two it is, and its key: settings that are missing, contradict each
// other or are no numbers.
RopeConfig ParseRope(const Json* scaling, const RopeDefaults& usual, const ConfigKeys& model,
                     const Family& family, const DecoderConfig& config);

// Errors: InvalidInput where a file has both, and they do not say the same. parameters: those of
// layers without a window. where: the file.
void CheckOneRopeSetting(const Json& parameters, const Json& scaling, const Family& family,
                         const std::string& where);

}  // namespace qlora

#endif  // QLORA_CONFIG_CONFIG_ROPE_H_
