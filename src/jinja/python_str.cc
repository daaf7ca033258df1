#include "jinja/python_str.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "unicode/unicode.h"

namespace qlora::jinja {
namespace {

constexpr char32_t kSharpS = 0xDF;

char32_t First(std::string_view text) {
  const char* p = text.data();
  return NextCharacter(p);
}

bool IsLineEnd(char32_t c) {
  return (c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool IsCased(char32_t c) {
  return (ClassOf(c) & (kUpperOrTitle | kLower)) != 0 || (c < 128 && (ClassOf(c) & kLetter) != 0);
}

bool IsLowerLetter(char32_t c) {
  return c < 128 ? c >= 'a' && c <= 'z' : (ClassOf(c) & kLower) != 0;
}

void AppendUpper(char32_t c, std::string& out) {
  if (c == kSharpS) {
    out += "SS";
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))), &out);
  }
}

void AppendTitle(char32_t c, std::string& out) {
  if (c == kSharpS) {
    out += "Ss";
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))), &out);
  }
}

// Python's str.isprintable of one character.
bool IsPrintable(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

template <typename Function>
void ForEachCharacter(std::string_view text, Function function) {
  const char* p = text.data();
  while (p != text.data() + text.size()) function(NextCharacter(p));
}

bool HasCase(std::string_view text, bool lower) {
  bool cased = false;
  bool other = false;
  ForEachCharacter(text, [&](char32_t c) {
    if (!IsCased(c)) return;
    (IsLowerLetter(c) == lower ? cased : other) = true;
  });
  return cased && !other;
}

}  // namespace

bool IsPythonSpace(char32_t c) { return IsWhitespace(c) || (c >= 0x1C && c <= 0x1F); }

std::int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::size_t ByteOffset(std::string_view text, std::int64_t index) {
  std::size_t at = 0;
  for (; index > 0 && at < text.size(); --index) {
    at += static_cast<std::size_t>(Utf8Length(text[at]));
  }
  return at;
}

std::string_view Strip(std::string_view text, Side side, std::optional<std::string_view> chars) {
  const auto taken = [&](std::string_view character) {
    return chars ? chars->find(character) != std::string_view::npos
                 : IsPythonSpace(First(character));
  };
  while (side != Side::kRight && !text.empty()) {
    const auto length = static_cast<std::size_t>(Utf8Length(text.front()));
    if (!taken(text.substr(0, length))) break;
    text.remove_prefix(length);
  }
  while (side != Side::kLeft && !text.empty()) {
    const char* end = text.data() + text.size();
    const auto length = static_cast<std::size_t>(end - PreviousCharacter(end));
    if (!taken(text.substr(text.size() - length))) break;
    text.remove_suffix(length);
  }
  return text;
}

std::vector<std::string_view> SplitAtSpace(std::string_view text, std::int64_t limit) {
  std::vector<std::string_view> parts;
  text = Strip(text, Side::kLeft);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<std::int64_t>(parts.size()) == limit) {
      parts.push_back(text);
      return parts;
    }
    std::size_t end = 0;
    while (end < text.size() && !IsPythonSpace(First(text.substr(end)))) {
      end += static_cast<std::size_t>(Utf8Length(text[end]));
    }
    parts.push_back(text.substr(0, end));
    text = Strip(text.substr(end), Side::kLeft);
  }
  return parts;
}

std::vector<std::string_view> SplitAtSpaceFromRight(std::string_view text, std::int64_t limit) {
  std::vector<std::string_view> parts;
  text = Strip(text, Side::kRight);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<std::int64_t>(parts.size()) == limit) {
      parts.push_back(text);
      break;
    }
    const char* begin = text.data() + text.size();
    while (begin != text.data()) {
      const char* previous = PreviousCharacter(begin);
      const char* character = previous;
      if (IsPythonSpace(NextCharacter(character))) break;
      begin = previous;
    }
    const auto at = static_cast<std::size_t>(begin - text.data());
    parts.push_back(text.substr(at));
    text = Strip(text.substr(0, at), Side::kRight);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> SplitAt(std::string_view text, std::string_view separator,
                                      std::int64_t limit) {
  std::vector<std::string_view> parts;
  for (std::size_t at; limit != 0 && (at = text.find(separator)) != std::string_view::npos;
       --limit) {
    parts.push_back(text.substr(0, at));
    text.remove_prefix(at + separator.size());
  }
  parts.push_back(text);
  return parts;
}

std::vector<std::string_view> SplitAtFromRight(std::string_view text, std::string_view separator,
                                               std::int64_t limit) {
  std::vector<std::string_view> parts;
  for (std::size_t at; limit != 0 && (at = text.rfind(separator)) != std::string_view::npos;
       --limit) {
    parts.push_back(text.substr(at + separator.size()));
    text = text.substr(0, at);
  }
  parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = at;
    const char32_t c = First(text.substr(at));
    at += static_cast<std::size_t>(Utf8Length(text[at]));
    if (!IsLineEnd(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string Replace(std::string_view text, std::string_view old, std::string_view by,
                    std::int64_t limit) {
  std::string out;
  if (old.empty()) {  // stands before every character and at the end
    std::size_t at = 0;
    for (; limit != 0; --limit) {
      out += by;
      if (at == text.size()) return out;
      const auto length = static_cast<std::size_t>(Utf8Length(text[at]));
      out += text.substr(at, length);
      at += length;
    }
    return out.append(text.substr(at));
  }
  const std::vector<std::string_view> parts = SplitAt(text, old, limit);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += by;
    out += parts[i];
  }
  return out;
}

std::string Upper(std::string_view text) {
  std::string out;
  ForEachCharacter(text, [&](char32_t c) { AppendUpper(c, out); });
  return out;
}

std::string Lower(std::string_view text) {
  std::string out;
  ForEachCharacter(text, [&](char32_t c) { AppendLowerCase(c, &out); });
  return out;
}

std::string Capitalize(std::string_view text) {
  std::string out;
  if (text.empty()) return out;
  AppendTitle(First(text), out);
  return out + Lower(text.substr(Utf8Length(text.front())));
}

std::string TitleCase(std::string_view text) {
  std::string out;
  bool inside = false;
  ForEachCharacter(text, [&](char32_t c) {
    inside ? AppendLowerCase(c, &out) : AppendTitle(c, out);
    inside = IsCased(c);
  });
  return out;
}

std::string TitleAtSeparators(std::string_view text) {
  std::string out;
  bool inside = false;
  ForEachCharacter(text, [&](char32_t c) {
    const bool separator =
        IsPythonSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    inside && !separator ? AppendLowerCase(c, &out) : AppendUpper(c, out);
    inside = !separator;
  });
  return out;
}

bool IsUpper(std::string_view text) { return HasCase(text, /*lower=*/false); }
bool IsLower(std::string_view text) { return HasCase(text, /*lower=*/true); }

std::string Repr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  const auto back = std::back_inserter(out);
  ForEachCharacter(text, [&](char32_t c) {
    const auto code = static_cast<std::uint32_t>(c);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (IsPrintable(c)) {
      AppendUtf8(c, &out);
    } else if (code < 0x100) {
      fmt::format_to(back, "\\x{:02x}", code);
    } else if (code < 0x10000) {
      fmt::format_to(back, "\\u{:04x}", code);
    } else {
      fmt::format_to(back, "\\U{:08x}", code);
    }
  });
  return out + quote;
}

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const double magnitude = std::fabs(value);
  const bool plain = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
  const auto result = std::to_chars(std::begin(buffer), std::end(buffer), value, format);
  std::string text(buffer, result.ptr);
  if (plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

void AppendJsonText(std::string_view text, bool ascii, std::string& out) {
  out += '"';
  const auto back = std::back_inserter(out);
  ForEachCharacter(text, [&](char32_t c) {
    constexpr std::string_view kNamed = "\b\f\n\r\t\"\\";
    constexpr std::string_view kLetters = "bfnrt\"\\";
    const auto code = static_cast<std::uint32_t>(c);
    const std::size_t named = c < 0x80 ? kNamed.find(static_cast<char>(c)) : std::string_view::npos;
    if (named != std::string_view::npos) {
      out += '\\';
      out += kLetters[named];
    } else if (c < 0x20 || (ascii && c >= 0x7F && c < 0x10000)) {
      fmt::format_to(back, "\\u{:04x}", code);
    } else if (ascii && c >= 0x10000) {
      fmt::format_to(back, "\\u{:04x}\\u{:04x}", 0xD7C0 + (code >> 10), 0xDC00 + (code & 0x3FF));
    } else {
      AppendUtf8(c, &out);
    }
  });
  out += '"';
}

}  // namespace qlora::jinja
