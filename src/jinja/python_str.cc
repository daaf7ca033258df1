#include "jinja/python_str.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/text.h"
#include "unicode/unicode.h"

namespace qlora::jinja {
namespace {

constexpr char32_t kSharpS = 0xDF;

// The first character of a text that is not empty.
char32_t First(std::string_view text) {
  const char* p = text.data();
  return NextCharacter(p);
}

// The characters at which str.splitlines cuts: \n, \r, but also form feeds and separators.
bool IsLineEnd(char32_t c) {
  return (c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

// Parts are paid for as they are found: a text of n separators has n + 1 parts of 16 bytes.
void AddPart(WorkBudget& budget, std::string_view part, std::vector<std::string_view>& parts) {
  budget.Charge(sizeof(part));
  parts.push_back(part);
}

}  // namespace

// Python also counts the separators of files, groups, records and units.
bool IsPythonSpace(char32_t c) { return IsWhitespace(c) || (c >= 0x1C && c <= 0x1F); }

// Walks from the front: an index of characters is not one of bytes.
std::size_t ByteOffset(std::string_view text, std::int64_t index) {
  std::size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += Utf8Length(text[at]);
  return at;
}

// `chars` is a set, not a prefix: " ab".strip("b a") is empty.
std::string_view StripText(std::string_view text, Side side,
                           std::optional<std::string_view> chars) {
  const auto taken = [&](std::string_view character) {
    return chars ? chars->find(character) != std::string_view::npos
                 : IsPythonSpace(First(character));
  };
  while (side != Side::kRight && !text.empty()) {
    const int length = Utf8Length(text.front());
    if (!taken(text.substr(0, length))) break;
    text.remove_prefix(length);
  }
  while (side != Side::kLeft && !text.empty()) {
    const char* end = text.data() + text.size();
    const auto length = end - PreviousCharacter(end);
    if (!taken(text.substr(text.size() - length))) break;
    text.remove_suffix(length);
  }
  return text;
}

// Pays for the bytes that agree at each place, since a hostile text makes the search quadratic:
//
//   text  a a a a a a a a        part  a a a b
//         a a a x                three bytes agree at the first place,
//           a a a x              three at the second, and so on
std::size_t FindPart(WorkBudget& budget, std::string_view text, std::string_view part, Side from) {
  const std::int64_t last = std::ssize(text) - std::ssize(part);
  for (std::int64_t i = 0; i <= last; ++i) {
    const std::int64_t at = from == Side::kRight ? last - i : i;
    const std::string_view here = text.substr(at, part.size());
    const auto differs = std::mismatch(here.begin(), here.end(), part.begin()).first;
    if (differs == here.end()) return at;
    if (differs != here.begin()) budget.Charge(differs - here.begin());
  }
  return std::string_view::npos;
}

std::vector<std::string_view> SplitAt(WorkBudget& budget, std::string_view text,
                                      std::string_view separator, std::int64_t limit, Side from) {
  std::vector<std::string_view> parts;
  for (; limit != 0; --limit) {
    const std::size_t at = FindPart(budget, text, separator, from);
    if (at == std::string_view::npos) break;
    const std::string_view before = text.substr(0, at);
    const std::string_view behind = text.substr(at + separator.size());
    AddPart(budget, from == Side::kRight ? behind : before, parts);
    text = from == Side::kRight ? before : behind;
  }
  parts.push_back(text);
  if (from == Side::kRight) std::reverse(parts.begin(), parts.end());
  return parts;
}

// Runs of white space separate the parts, of which none is empty. Parts beyond the limit become one
// with the white space around them:
//   " a  b c ".split(None, 1) -> "a", "b c "         " a  b c ".rsplit(None, 1) -> " a  b", "c"
std::vector<std::string_view> SplitAtSpace(WorkBudget& budget, std::string_view text,
                                           std::int64_t limit, Side from) {
  std::vector<std::string_view> parts;
  std::string_view rest = StripText(text, Side::kLeft);
  for (; !rest.empty(); rest = StripText(rest, Side::kLeft)) {
    std::size_t end = 0;
    while (end < rest.size() && !IsPythonSpace(First(rest.substr(end)))) {
      end += Utf8Length(rest[end]);
    }
    AddPart(budget, rest.substr(0, end), parts);
    rest.remove_prefix(end);
  }
  if (limit < 0 || std::ssize(parts) <= limit) return parts;
  if (from == Side::kRight) {
    const std::string_view last = *(parts.end() - limit - 1);
    parts.erase(parts.begin(), parts.end() - limit - 1);
    parts.front() = {text.data(), last.data() + last.size()};
  } else {
    parts[limit] = {parts[limit].data(), text.data() + text.size()};
    parts.resize(limit + 1);
  }
  return parts;
}

// "\r\n" is one end, and a final end begins no further line.
std::vector<std::string_view> SplitLines(WorkBudget& budget, std::string_view text,
                                         bool keep_ends) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = at;
    const char32_t c = First(text.substr(at));
    at += Utf8Length(text[at]);
    if (!IsLineEnd(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    AddPart(budget, text.substr(begin, (keep_ends ? at : end) - begin), lines);
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

void AppendEscape(char letter, char32_t c, int digits, std::string& out) {
  out += {'\\', letter};
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) {
    out += "0123456789abcdef"[(c >> shift) & 0xF];
  }
}

void AppendCapital(char32_t c, bool is_title, std::string& out) {
  const auto code = static_cast<utf8proc_int32_t>(c);
  if (c == kSharpS) {
    out += is_title ? "Ss" : "SS";
  } else {
    AppendUtf8(static_cast<char32_t>(is_title ? utf8proc_totitle(code) : utf8proc_toupper(code)),
               &out);
  }
}

void AppendCapitalized(char32_t c, bool is_first, std::string& out) {
  is_first ? AppendCapital(c, /*is_title=*/true, out) : AppendLowerCase(c, &out);
}

std::string Capitalized(std::string_view text) {
  std::string out;
  for (const char* p = text.data(); p != text.data() + text.size();) {
    const bool is_first = p == text.data();
    AppendCapitalized(NextCharacter(p), is_first, out);
  }
  return out;
}

std::string TitleCase(WorkBudget& budget, std::string_view text, bool (*ends_word)(char32_t),
                      bool is_title) {
  budget.Charge(text.size(), kCaseWork);
  std::string out;
  bool inside = false;
  for (const char* p = text.data(); p != text.data() + text.size();) {
    const char32_t c = NextCharacter(p);
    inside ? AppendLowerCase(c, &out) : AppendCapital(c, is_title, out);
    inside = !ends_word(c);
  }
  return out;
}

// Characters without a case, such as digits, do not count.
bool HasCase(std::string_view text, unsigned char_class) {
  bool found = false;
  for (const char* p = text.data(); p != text.data() + text.size();) {
    const unsigned letter = ClassOf(NextCharacter(p)) & (kUpperOrTitle | kLower);
    if ((letter & ~char_class) != 0) return false;
    found |= letter != 0;
  }
  return found;
}

}  // namespace qlora::jinja
