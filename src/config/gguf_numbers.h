// The keys of GGUF files that are one number of a config.json under another name, told once for
// those who read files and those who write them. gguf_config_layers.h and gguf_config_rope.h have
// keys with rules, likewise both ways.
#ifndef QLORA_CONFIG_GGUF_NUMBERS_H_
#define QLORA_CONFIG_GGUF_NUMBERS_H_

#include <cstdint>
#include <optional>
#include <span>

#include "config/config.h"
#include "config/families.h"

namespace qlora {

// llama.cpp computes the scale of Gemma 2's scores from the sizes of the model. Where a checkpoint
// has another, the difference is in q_proj of the file (LinearRows::factor), and this key, which
// llama.cpp does not know, has the checkpoint's number: readers take the difference out again, so
// that adapters of the checkpoint fit.
inline constexpr const char* kGgufQueryScalar = "qlora.query_pre_attn_scalar";

struct GgufNumber {
  const char* gguf;    // without the architecture: "embedding_length"
  const char* config;  // "hidden_size"
  bool (*counts)(const Family&);
  // What is written. nullptr: the key is written for another row, or with its rules (AddWindows).
  std::int64_t (*value)(const DecoderConfig&);
  std::optional<std::int64_t> otherwise = {};  // without the key; nothing: it must be there
};
std::span<const GgufNumber> GgufNumbers();

// Granite's multipliers.
struct GgufMultiplier {
  const char* gguf;
  const char* config;
  float (*value)(const DecoderConfig&);
};
std::span<const GgufMultiplier> GgufMultipliers();

// The i for which the layers that attend are i - 1, 2 i - 1 ...
// Errors: InvalidInput for other layers.
std::int64_t GgufAttentionInterval(const DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_CONFIG_GGUF_NUMBERS_H_
