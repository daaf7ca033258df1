// What llama.cpp computes otherwise than config.json says, for lack of a key that it reads.
#ifndef QLORA_EXPORT_GGUF_GGUF_LIMITS_H_
#define QLORA_EXPORT_GGUF_GGUF_LIMITS_H_

#include <cstdint>
#include <string>

#include "config/config.h"
#include "config/families.h"

namespace qlora {

// tied: the head is the embedding. Errors: InvalidInput, with the setting and what llama.cpp would
// compute, where no file makes it compute the same.
void CheckGgufLimits(const DecoderConfig& config, bool tied);

// llama.cpp rounds the range of YaRN outwards whatever `truncate` says. Gives a gpt-oss that rule,
// without which none could be written, and returns a note for the user; "" for other models.
std::string TakeGgufYarn(DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_EXPORT_GGUF_GGUF_LIMITS_H_
