// The decoder that a GGUF file describes: the config.json that its keys are the same as
// (gguf_config_json.h), and what no config.json can state. DecoderConfig::notes says what is in the
// file and is not followed, because llama.cpp does not follow it.
#ifndef QLORA_CONFIG_GGUF_CONFIG_H_
#define QLORA_CONFIG_GGUF_CONFIG_H_

#include "config/config.h"
#include "gguf/gguf.h"
#include "io/json_fwd.h"

namespace qlora {

// Errors: InvalidInput naming the file and the key: keys that llama.cpp needs and the file lacks,
// an architecture that is not supported, files that are no models, settings that contradict each
// other.
DecoderConfig ParseGgufConfig(const GgufReader& file);

// The config.json of a file, as far as one can state its decoder. Errors: the same.
Json GgufConfigJson(const GgufReader& file);

}  // namespace qlora

#endif  // QLORA_CONFIG_GGUF_CONFIG_H_
