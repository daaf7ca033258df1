#include "serve/token_bytes.h"

#include <algorithm>

#include "base/text.h"
#include "tokenizer/byte_characters.h"

namespace qlora {

std::string TokenBytes(const Tokenizer& tokenizer, std::int32_t id) {
  const bool is_added = std::ranges::count(tokenizer.spec().added_tokens, id, &AddedToken::id) != 0;
  return is_added ? tokenizer.TokenText(id) : BytesOfVocabulary(tokenizer, id);
}

std::string BytesOfVocabulary(const Tokenizer& tokenizer, std::int32_t id) {
  const std::string text = tokenizer.TokenText(id);
  const TokenizerSpec& spec = tokenizer.spec();
  if (spec.kind == TokenizerKind::kByteLevelBpe) return BytesOfByteCharacters(text).value_or(text);
  const int byte = spec.byte_fallback ? ByteOfToken(text) : -1;
  return byte >= 0 ? std::string(1, static_cast<char>(byte)) : ReplaceAll(text, kMetaspace, " ");
}

}  // namespace qlora
