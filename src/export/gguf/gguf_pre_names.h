// The names by which GGUF files say how text is split: llama.cpp's, of tokenizer.ggml.pre.
#ifndef QLORA_EXPORT_GGUF_GGUF_PRE_NAMES_H_
#define QLORA_EXPORT_GGUF_GGUF_PRE_NAMES_H_

#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace qlora {

// Returns the name of the rule that splits as the tokenizer does, and, of several, treats words
// that are tokens as it does. A rule that differs in that alone, or that llama.cpp itself takes for
// a family though it splits in another way, gets a note. Errors: InvalidInput when there is no
// rule.
std::string GgufPreName(const TokenizerSpec& spec, std::vector<std::string>& notes);

}  // namespace qlora

#endif  // QLORA_EXPORT_GGUF_GGUF_PRE_NAMES_H_
