// Tokenizers as keys of GGUF.
#ifndef QLORA_CONVERT_GGUF_TOKENIZER_H_
#define QLORA_CONVERT_GGUF_TOKENIZER_H_

#include <cstdint>

#include "gguf/gguf.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// Adds the keys of the tokenizer; rows: size of the embedding, which may be padded beyond it.
// Errors: InvalidInput for a tokenizer that GGUF cannot describe.
void AddTokenizerMetadata(const Tokenizer& tokenizer, std::int64_t rows, GgufMetadata& out);

}  // namespace qlora

#endif  // QLORA_CONVERT_GGUF_TOKENIZER_H_
