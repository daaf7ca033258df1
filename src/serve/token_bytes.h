// The bytes of single tokens, which need not be whole characters.
#ifndef QLORA_SERVE_TOKEN_BYTES_H_
#define QLORA_SERVE_TOKEN_BYTES_H_

#include <cstdint>
#include <string>

#include "tokenizer/tokenizer.h"

namespace qlora {

// What a token adds to a text; "" for an id without a token. Within a text the bytes of its tokens,
// one after the other, are the text.
std::string TokenBytes(const Tokenizer& tokenizer, std::int32_t id);
// The same of a token that is none of the added ones, whose texts are as they are.
std::string BytesOfVocabulary(const Tokenizer& tokenizer, std::int32_t id);

}  // namespace qlora

#endif  // QLORA_SERVE_TOKEN_BYTES_H_
