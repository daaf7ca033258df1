// The keys of a GGUF file as those of a config.json, by the rules of llama.cpp: which keys it
// reads, what their defaults are, and what it computes without a key. Where those differ from what
// the model was trained with (windows that llama.cpp ignores, YaRN's parameters), the file is
// followed as llama.cpp follows it.
//
// Tensors tell what keys do not: the rows of the embedding, biases, whether the head is tied.
#ifndef QLORA_CONFIG_GGUF_CONFIG_JSON_H_
#define QLORA_CONFIG_GGUF_CONFIG_JSON_H_

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "config/families.h"
#include "config/gguf_keys.h"
#include "io/json_fwd.h"

namespace qlora {

// Returns a config.json that ParseDecoderConfig reads, with every key that matters there. What no
// config.json can state is in gguf_config.cc. Errors: as of ParseGgufConfig.
Json ConfigJsonOfKeys(const GgufKeys& keys, const Family& family);

// Whether a block, no matter which, has one of these tensors: "attn_q.bias".
bool HasInABlock(const GgufReader& file, std::initializer_list<std::string_view> names);
// Which biases a file has, of those that llama.cpp reads in the family. Others are tensors of no
// list, which are refused by their names.
struct GgufBiases {
  bool qkv = false;
  bool o = false;
  bool mlp = false;
};
GgufBiases BiasesOf(const GgufReader& file, const GgufFamily& family);

// ---- For the parts of ConfigJsonOfKeys.

// Makes `other` of those layers in layer_types that are full_attention, as all are at first, and of
// which is_other says so, which has an entry for each block.
void AddLayerTypes(const std::vector<bool>& is_other, const char* other, Json& json);
// A number of `json`.
std::int64_t NumberAt(const Json& json, const char* key);
// The shortest decimal number that is this float: 1e-5, not 9.999999747378752e-06.
double Shortest(double value);
// The least factor of which `of * factor`, rounded down, is `part`.
double LeastFactor(std::int64_t part, std::int64_t of);

}  // namespace qlora

#endif  // QLORA_CONFIG_GGUF_CONFIG_JSON_H_
