#include "jinja/python_str.h"

#include <utf8proc.h>

#include <algorithm>

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

bool IsPythonSpace(char32_t c) { return IsWhitespace(c) || (c >= 0x1C && c <= 0x1F); }

// Every character has one byte that is not a continuation, 10xxxxxx.
std::int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

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

// Pays for the bytes that agree at each place that begins like `part`, since a hostile text makes
// the search quadratic:
//
//   text  a a a a a a a a        part  a a a b
//         a a a x                three bytes agree at the first place,
//           a a a x              three at the second, and so on
std::size_t FindPart(WorkBudget& budget, std::string_view text, std::string_view part) {
  if (part.empty()) return 0;
  std::size_t at = text.find(part.front());
  for (; at != std::string_view::npos; at = text.find(part.front(), at + 1)) {
    const std::string_view here = text.substr(at, part.size());
    const auto differs = std::mismatch(here.begin(), here.end(), part.begin()).first;
    budget.Charge(differs - here.begin());
    if (differs - here.begin() == std::ssize(part)) return at;
  }
  return at;
}

std::vector<std::string_view> SplitAt(WorkBudget& budget, std::string_view text,
                                      std::string_view separator, std::int64_t limit) {
  std::vector<std::string_view> parts;
  for (; limit != 0; --limit) {
    const std::size_t at = FindPart(budget, text, separator);
    if (at == std::string_view::npos) break;
    AddPart(budget, text.substr(0, at), parts);
    text.remove_prefix(at + separator.size());
  }
  parts.push_back(text);
  return parts;
}

// Runs of white space separate the parts, of which none is empty; the last part, once the limit is
// reached, keeps its white space: " a  b c ".split(None, 1) -> "a", "b c ".
std::vector<std::string_view> SplitAtSpace(WorkBudget& budget, std::string_view text,
                                           std::int64_t limit) {
  std::vector<std::string_view> parts;
  for (text = StripText(text, Side::kLeft); !text.empty(); text = StripText(text, Side::kLeft)) {
    std::size_t end = text.size();
    if (limit < 0 || std::ssize(parts) < limit) {
      end = 0;
      while (end < text.size() && !IsPythonSpace(First(text.substr(end)))) {
        end += Utf8Length(text[end]);
      }
    }
    AddPart(budget, text.substr(0, end), parts);
    text.remove_prefix(end);
  }
  return parts;
}

// Returns the lines without their ends; "\r\n" is one end, and a final end begins no further line.
std::vector<std::string_view> SplitLines(WorkBudget& budget, std::string_view text) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = at;
    const char32_t c = First(text.substr(at));
    at += Utf8Length(text[at]);
    if (!IsLineEnd(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    AddPart(budget, text.substr(begin, end - begin), lines);
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

std::string TitleCase(WorkBudget& budget, std::string_view text, bool (*ends_word)(char32_t)) {
  budget.Charge(text.size(), kCaseWork);
  std::string out;
  bool inside = false;
  for (const char* p = text.data(); p != text.data() + text.size();) {
    const char32_t c = NextCharacter(p);
    inside ? AppendLowerCase(c, &out) : AppendCapital(c, /*is_title=*/true, out);
    inside = !ends_word(c);
  }
  return out;
}

}  // namespace qlora::jinja
