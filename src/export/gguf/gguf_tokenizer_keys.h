// Writes tokenizers as keys of GGUF; tokenizer/gguf/gguf_vocabulary.h reads them.
#ifndef QLORA_EXPORT_GGUF_GGUF_TOKENIZER_KEYS_H_
#define QLORA_EXPORT_GGUF_GGUF_TOKENIZER_KEYS_H_

#include <cstdint>

#include "gguf/gguf.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// Adds the keys of the tokenizer for a model of this architecture of llama.cpp; rows: size of the
// embedding, which may be padded beyond it. prefix_space: whether a space is put before texts,
// which is the tokenizer's rule unless prompts of decisions have their spaces themselves. Added
// tokens without a row are left out, with a note: no text that the model reads can hold them.
// Errors: InvalidInput for a tokenizer that GGUF cannot describe, and for a token without a row
// that is BOS, EOS or in the chat template.
void AddTokenizerMetadata(const Tokenizer& tokenizer, const std::string& architecture,
                          std::int64_t rows, bool prefix_space, GgufMetadata& out,
                          std::vector<std::string>& notes);

// Returns `name`, or a name under which llama.cpp tokenizes as this tokenizer does: where the name
// contains "phi-3" or "phi3", its special tokens take the white space behind them.
std::string NameForTokenizer(const std::string& name, const Tokenizer& tokenizer,
                             std::vector<std::string>& notes);

}  // namespace qlora

#endif  // QLORA_EXPORT_GGUF_GGUF_TOKENIZER_KEYS_H_
