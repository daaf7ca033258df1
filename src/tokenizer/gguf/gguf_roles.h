// Which tokens of a GGUF file are BOS, EOS, PAD and UNK, which end a generation, and what is put
// around a text, as llama.cpp decides it: by keys, by defaults of the kind of tokenizer and by the
// texts of tokens, since many files name one of several ends.
#ifndef QLORA_TOKENIZER_GGUF_GGUF_ROLES_H_
#define QLORA_TOKENIZER_GGUF_GGUF_ROLES_H_

#include <string_view>

#include "tokenizer/gguf/gguf_vocabulary.h"
#include "tokenizer/tokenizer_keys.h"

namespace qlora {

// Sets roles and adds, and the types of tokens whose texts decide them. Reads kind, texts, types
// and pre_tokenizer. Errors: InvalidInput for BOS, EOS, EOT or EOM that is not a token, and for BOS
// or EOS that is to be added and does not exist.
void ReadGgufRoles(const TokenizerKeys& keys, GgufVocabulary* vocabulary);

// True when a token of this text ends a generation without any key.
bool EndsByText(std::string_view text);

}  // namespace qlora

#endif  // QLORA_TOKENIZER_GGUF_GGUF_ROLES_H_
