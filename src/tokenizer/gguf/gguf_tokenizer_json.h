// The tokenizer of a GGUF file as tokenizer.json and the files beside it. A GGUF tokenizer is read
// through the same stages (gguf_tokenizer.cc), and a checkpoint that is made of the file gets them.
//
// Texts give the ids that they give with the GGUF file, but for three things that tokenizer.json
// cannot have: special tokens that overlap each other are found from left to right, equal scores
// have an order, and characters without a token take no part in merges. Where a name of a
// pre-tokenizer stands for one regular expression of tokenizer.json, this is written; letters
// outside of ASCII may then be cut as the model learnt it, and not as llama.cpp does.
#ifndef QLORA_TOKENIZER_GGUF_GGUF_TOKENIZER_JSON_H_
#define QLORA_TOKENIZER_GGUF_GGUF_TOKENIZER_JSON_H_

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tokenizer/gguf/gguf_vocabulary.h"

namespace qlora {

// True for tokens that are looked for in a text.
bool IsSearched(GgufTokenType type);
// True for tokens that are left out of a text for readers.
bool IsHidden(GgufTokenType type);

// The normalizer of tokenizer.json, or null.
nlohmann::json NormalizerOf(const GgufVocabulary& vocabulary);
// The pre-tokenizer that a GGUF file asks for, or null.
nlohmann::json PreTokenizerOf(const GgufVocabulary& vocabulary);
// The pre-tokenizer of byte-level encodings. splits: regular expressions, applied one after
// another.
nlohmann::json ByteLevelPreTokenizer(const std::vector<std::string>& splits);

// Returns the texts of tokenizer.json, tokenizer_config.json and generation_config.json by name.
// Errors: InvalidInput for a vocabulary of Gemma 4's kind with line feeds that llama.cpp does not
// merge as it merges others.
std::map<std::string, std::string> TokenizerFilesOf(const GgufVocabulary& vocabulary);

// bos_token_id, eos_token_id (a number or a list) and pad_token_id, of config.json and
// generation_config.json; null where there is none.
nlohmann::json TokenIdsOf(const TokenRoles& roles);

}  // namespace qlora

#endif  // QLORA_TOKENIZER_GGUF_GGUF_TOKENIZER_JSON_H_
