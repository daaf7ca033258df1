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

// YaRN: the divisors of the frequencies are written as a tensor, in place of the parameters that
// llama.cpp does not read (betas, truncate). Only some graphs read such a tensor.
bool WritesYarnAsFactors(const RopeConfig& rope, const Family& family);

// The factor of cos and sin beside llama.cpp's own for YaRN, 1 + 0.1 ln(factor).
float GgufYarnFactor(const RopeConfig& rope);

// The same for Ministral 3, whose factor is divided by 1 + 0.1 m ln(factor) with the multiplier m
// that is returned. Errors: InvalidInput for another factor.
float GgufYarnLogMultiplier(const RopeConfig& rope);

// llama.cpp rounds the range of YaRN outwards whatever `truncate` says. Gives a gpt-oss that rule,
// without which none could be written, and returns a note for the user; "" for other models.
std::string TakeGgufYarn(DecoderConfig& config);

// The period n of attention.sliding_window_pattern: layer i has the window when i % n < n - 1; 0:
// every layer. Errors: InvalidInput for windows in another order.
std::uint32_t GgufWindowPeriod(const DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_EXPORT_GGUF_GGUF_LIMITS_H_
