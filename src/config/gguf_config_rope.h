// The rotary embedding of a GGUF file in the words of config.json. Used by gguf_config_json.cc and
// gguf_config.cc.
#ifndef QLORA_CONFIG_GGUF_CONFIG_ROPE_H_
#define QLORA_CONFIG_GGUF_CONFIG_ROPE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "config/families.h"
#include "config/gguf_keys.h"
#include "io/json_fwd.h"

namespace qlora {

// Needs head_dim and the length of the context in `json`.
void AddGgufRope(const GgufKeys& keys, const Family& family, Json& json);

// Whether the graph divides the frequencies by one of two lists, of which the length of a text
// decides.
bool HasFactorLists(const GgufKeys& keys, const Family& family);
// The tensor (pairs) that divides the frequencies (kGgufDivisors), with infinity for pairs that do
// not turn; empty where all divisors are 1.
std::vector<double> ReadTurns(const GgufReader& file, std::int64_t pairs);

}  // namespace qlora

#endif  // QLORA_CONFIG_GGUF_CONFIG_ROPE_H_
