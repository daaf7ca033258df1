#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "unicode/unicode.h"

namespace qlora {
namespace {

bool EndsWithWord(std::string_view text) {
  if (text.empty()) return false;
  const char* p = PreviousCharacter(text.data() + text.size());
  return IsWordCharacter(NextCharacter(p));
}

bool StartsWithWord(std::string_view text) {
  if (text.empty()) return false;
  const char* p = text.data();
  return IsWordCharacter(NextCharacter(p));
}

// Where the white space before `at` begins.
std::size_t SpaceBefore(std::string_view text, std::size_t at) {
  while (at > 0) {
    const char* const before = PreviousCharacter(text.data() + at);
    const char* p = before;
    if (!IsWhitespace(NextCharacter(p))) break;
    at = static_cast<std::size_t>(before - text.data());
  }
  return at;
}

std::size_t SpaceAfter(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const char* p = text.data() + at;
    if (!IsWhitespace(NextCharacter(p))) break;
    at = static_cast<std::size_t>(p - text.data());
  }
  return at;
}

}  // namespace

bool AddedTokenMatcher::Add(std::string_view text, const AddedToken* token) {
  if (!trie_.Insert(text, static_cast<std::int32_t>(tokens_.size()))) return false;
  first_[static_cast<unsigned char>(text[0])] = true;
  tokens_.push_back(token);
  return true;
}

// A match that is no single word is passed over as a whole. White space that a token takes on its
// right may still be the place of the next token: the same (odd) order as Hugging Face's.
void AddedTokenMatcher::Split(
    std::string_view text,
    const std::function<void(std::string_view piece, std::size_t begin)>& on_text,
    const std::function<void(std::int32_t id)>& on_token) const {
  std::size_t done = 0;
  const std::size_t size = tokens_.empty() ? 0 : text.size();
  for (std::size_t at = 0; at < size;) {
    if (!first_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    std::size_t stop = at;
    std::int32_t found = -1;
    trie_.ForEachPrefix(text.substr(at), [&](std::size_t length, std::int32_t index) {
      stop = at + length;
      found = index;
    });
    if (found < 0) {
      ++at;
      continue;
    }
    std::size_t start = at;
    at = stop;
    const AddedToken& token = *tokens_[found];
    if (token.single_word &&
        (EndsWithWord(text.substr(0, start)) || StartsWithWord(text.substr(stop)))) {
      continue;
    }
    if (token.lstrip) start = std::max(SpaceBefore(text, start), done);
    if (token.rstrip) stop = SpaceAfter(text, stop);
    if (start > done) on_text(text.substr(done, start - done), done);
    on_token(token.id);
    done = stop;
  }
  if (done < text.size()) on_text(text.substr(done), done);
}

}  // namespace qlora
