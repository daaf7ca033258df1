// tokenizer.json as it is read: the vocabulary and the merges as flat lists, the rest as a tree.
#ifndef QLORA_TOKENIZER_TOKENIZER_JSON_H_
#define QLORA_TOKENIZER_TOKENIZER_JSON_H_

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/json_value.h"

namespace qlora {

struct TokenizerJson {
  std::string file;
  std::uint64_t hash = 0;  // of the text
  nlohmann::json rest;     // model.vocab and model.merges are empty containers here
  std::vector<std::pair<std::string, std::int32_t>> vocab;  // piece, id; in file order
  std::vector<std::pair<std::string, std::string>> merges;  // "a b" and ["a", "b"] alike

  JsonValue Root() const { return {&rest, file + ": "}; }
};

// A vocabulary that is an array, as in models other than BPE, is left out.
// Errors: InvalidInput when the file cannot be read, is not JSON, is nested deeply, has a key
// twice, or when a piece or a merge is malformed.
TokenizerJson ReadTokenizerJson(const std::filesystem::path& path);

}  // namespace qlora

#endif  // QLORA_TOKENIZER_TOKENIZER_JSON_H_
