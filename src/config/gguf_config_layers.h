// Heads, experts and windows of a GGUF file: how they are read, in the words of config.json, and
// how they are written. gguf_numbers.h has the keys that need no rules; those of Gemma 4 are in
// gguf_config_gemma4.h.
#ifndef QLORA_CONFIG_GGUF_CONFIG_LAYERS_H_
#define QLORA_CONFIG_GGUF_CONFIG_LAYERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/families.h"
#include "config/gguf_keys.h"
#include "gguf/gguf.h"
#include "io/json_fwd.h"

namespace qlora {

// The heads of keys and values of each block of an LFM2; 0 tells a short convolution.
std::vector<std::int64_t> GgufHeadsOrConvolutions(const GgufKeys& keys);

// Widths and heads. Needs hidden_size in `json`; prefix: the architecture and a dot.
void ReadGgufHeads(const GgufKeys& keys, const Family& family, Json& json);
void WriteGgufHeads(const DecoderConfig& config, const std::string& prefix, GgufMetadata& out);

// Needs the widths in `json`; WriteGgufHeads writes them.
void ReadGgufExperts(const GgufKeys& keys, const Family& family, Json& json);

// Which layers see a window, and its size.
void ReadGgufWindows(const GgufKeys& keys, const Family& family, Json& json);
void WriteGgufWindows(const DecoderConfig& config, const std::string& prefix, GgufMetadata& out);

// The period n of attention.sliding_window_pattern: layer i has the window when i % n < n - 1; 0:
// every layer. Errors: InvalidInput for windows in another order.
std::uint32_t GgufWindowPeriod(const DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_CONFIG_GGUF_CONFIG_LAYERS_H_
