// The rotary embedding of a GGUF file: how it is read, in the words of config.json, and how it is
// written.
#ifndef QLORA_CONFIG_GGUF_CONFIG_ROPE_H_
#define QLORA_CONFIG_GGUF_CONFIG_ROPE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/families.h"
#include "config/gguf_keys.h"
#include "gguf/gguf.h"
#include "io/json_fwd.h"

namespace qlora {

// Needs head_dim and the length of the context in `json`.
void ReadGgufRope(const GgufKeys& keys, const Family& family, Json& json);
// prefix: the architecture and a dot. Errors: as GgufYarnLogMultiplier.
void WriteGgufRope(const DecoderConfig& config, const std::string& prefix, GgufMetadata& out);

// The parameters of YaRN with which llama.cpp computes it where it reads none.
bool HasUsualGgufYarn(const RopeConfig& rope);
// YaRN: the divisors of the frequencies are written as a tensor, in place of the parameters that
// llama.cpp does not read (betas, truncate). Only some graphs read such a tensor.
bool WritesYarnAsFactors(const RopeConfig& rope, const Family& family);
// The factor of cos and sin beside llama.cpp's own for YaRN, 1 + 0.1 ln(factor).
float GgufYarnFactor(const RopeConfig& rope);
// The same for Ministral 3, whose factor is divided by 1 + 0.1 m ln(factor) with the multiplier m
// that is returned. Errors: InvalidInput for another factor.
float GgufYarnLogMultiplier(const RopeConfig& rope);

// Whether the graph divides the frequencies by one of two lists, of which the length of a text
// decides.
bool HasFactorLists(const GgufKeys& keys, const Family& family);
// The tensor (pairs) that divides the frequencies (kGgufDivisors), with infinity for pairs that do
// not turn; empty where all divisors are 1.
std::vector<double> ReadTurns(const GgufReader& file, std::int64_t pairs);

}  // namespace qlora

#endif  // QLORA_CONFIG_GGUF_CONFIG_ROPE_H_
