// Keys of GGUF files that llama.cpp reads and the parser of the configuration has no use for: their
// types count, and their values where they change what is computed.
#ifndef QLORA_CONFIG_GGUF_CHECKED_KEYS_H_
#define QLORA_CONFIG_GGUF_CHECKED_KEYS_H_

#include "config/config.h"
#include "config/families.h"
#include "config/gguf_keys.h"

namespace qlora {

// Errors: InvalidInput for a key of another type than llama.cpp reads, and for a value that it
// applies and that the model of these layers does not have.
void CheckGgufKeys(const GgufKeys& keys, const Family& family, const DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_CONFIG_GGUF_CHECKED_KEYS_H_
