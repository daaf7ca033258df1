// SentencePiece's compiled normalization rules ("precompiled_charsmap").
#ifndef QLORA_TOKENIZER_NORMALIZER_PRECOMPILED_H_
#define QLORA_TOKENIZER_NORMALIZER_PRECOMPILED_H_

#include <memory>

#include "tokenizer/normalizer.h"

namespace qlora {

// charsmap: base64 of a double-array trie and the replacement texts. null gives no rules.
// Errors: InvalidInput when it is damaged.
std::unique_ptr<const Normalizer::Step> MakePrecompiledStep(const JsonValue& charsmap);

}  // namespace qlora

#endif  // QLORA_TOKENIZER_NORMALIZER_PRECOMPILED_H_
