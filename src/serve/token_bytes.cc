#include "serve/token_bytes.h"

#include <algorithm>
#include <charconv>

#include "base/text.h"
#include "tokenizer/byte_characters.h"

namespace qlora {
namespace {

// U+2581, which SentencePiece writes in place of a space.
constexpr const char* kSpaceMark = "\xE2\x96\x81";

// The byte of "<0x0A>".
std::string ByteOf(const std::string& text) {
  unsigned int byte = 0;
  const bool has_form = text.size() == 6 && text.starts_with("<0x") && text.ends_with('>');
  if (!has_form) return {};
  const auto [end, error] = std::from_chars(text.data() + 3, text.data() + 5, byte, 16);
  return error == std::errc() && end == text.data() + 5 ? std::string(1, static_cast<char>(byte))
                                                        : std::string();
}

}  // namespace

std::string TokenBytes(const Tokenizer& tokenizer, std::int32_t id) {
  const bool is_added = std::ranges::count(tokenizer.spec().added_tokens, id, &AddedToken::id) != 0;
  return is_added ? tokenizer.TokenText(id) : BytesOfVocabulary(tokenizer, id);
}

std::string BytesOfVocabulary(const Tokenizer& tokenizer, std::int32_t id) {
  const std::string text = tokenizer.TokenText(id);
  const TokenizerSpec& spec = tokenizer.spec();
  if (spec.kind == TokenizerKind::kByteLevelBpe) return BytesOfByteCharacters(text).value_or(text);
  if (std::string byte = spec.byte_fallback ? ByteOf(text) : ""; !byte.empty()) return byte;
  return ReplaceAll(text, kSpaceMark, " ");
}

}  // namespace qlora
