#include "prompt/fit/template_names.h"

#include <cctype>

namespace qlora {
namespace {

bool IsNamePart(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Calls found(begin, end) for each place of the whole word, until it returns true.
template <typename Found>
bool AnyWord(std::string_view text, std::string_view word, const Found& found) {
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool whole =
        (at == 0 || !IsNamePart(text[at - 1])) && (end == text.size() || !IsNamePart(text[end]));
    if (whole && found(at, end)) return true;
  }
  return false;
}

}  // namespace

bool HasWholeWord(std::string_view text, std::string_view word) {
  return AnyWord(text, word, [](std::size_t, std::size_t) { return true; });
}

bool NamesField(std::string_view source, std::string_view name) {
  return AnyWord(source, name, [source](std::size_t begin, std::size_t end) {
    const char before = begin == 0 ? ' ' : source[begin - 1];
    const char after = end == source.size() ? ' ' : source[end];
    return before == '.' || ((before == '\'' || before == '"') && after == before);
  });
}

}  // namespace qlora
