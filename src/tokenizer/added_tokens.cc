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

// The beginning of the white space before `at`, but not before `first`.
std::int64_t SpaceBefore(std::string_view text, std::int64_t at, std::int64_t first) {
  while (at > first) {
    const char* const before = PreviousCharacter(text.data() + at);
    const char* p = before;
    if (!IsWhitespace(NextCharacter(p))) break;
    at = before - text.data();
  }
  return std::max(at, first);
}

// The end of the white space behind `at`.
std::int64_t SpaceAfter(std::string_view text, std::int64_t at) {
  while (at < std::ssize(text)) {
    const char* p = text.data() + at;
    if (!IsWhitespace(NextCharacter(p))) break;
    at = p - text.data();
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

const AddedToken* AddedTokenMatcher::TokenAt(std::string_view text, std::int64_t* length) const {
  if (!first_[static_cast<unsigned char>(text[0])]) return nullptr;
  const AddedToken* token = nullptr;
  trie_.ForEachPrefix(text, [&](std::int64_t bytes, std::int32_t index) {
    *length = bytes;
    token = tokens_[index];
  });
  return token;
}

// A match that is not a single word is passed over as a whole. White space that a token takes on
// its right may still be the place of the next token: the same (odd) order as Hugging Face's.
//
//     text           "Hi   <eot>  <s>there"       <eot> with lstrip and rstrip, <s> without
//     on_text        "Hi"                "there"
//     on_token            <eot>     <s>
void AddedTokenMatcher::Split(
    std::string_view text,
    const std::function<void(std::string_view piece, std::int64_t begin)>& on_text,
    const std::function<void(std::int32_t id)>& on_token) const {
  std::int64_t done = 0;       // the text before it has been handed on
  std::int64_t space_end = 0;  // of the white space that a token took on its right
  const std::int64_t size = tokens_.empty() ? 0 : std::ssize(text);
  for (std::int64_t at = 0; at < size;) {
    std::int64_t length = 0;
    const AddedToken* const token = TokenAt(text.substr(at), &length);
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::int64_t start = at;
    std::int64_t stop = at + length;
    at = stop;
    if (token->single_word &&
        (EndsWithWord(text.substr(0, start)) || StartsWithWord(text.substr(stop)))) {
      continue;
    }
    if (token->lstrip) start = SpaceBefore(text, start, done);
    // Behind a token that is white space itself, the same white space is not scanned again.
    if (token->rstrip) stop = space_end = stop < space_end ? space_end : SpaceAfter(text, stop);
    if (start > done) on_text(text.substr(done, start - done), done);
    on_token(token->id);
    done = stop;
  }
  if (done < std::ssize(text)) on_text(text.substr(done), done);
}

}  // namespace qlora
