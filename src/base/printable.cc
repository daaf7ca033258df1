#include "base/printable.h"

#include <fmt/format.h>

#include <charconv>
#include <iterator>

#include "base/text.h"

namespace qlora {

namespace {

// The bytes of the UTF-8 character at the start of `text`; 1 where there is none.
std::size_t LengthOfCharacter(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t length = lead < 0xC2 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (lead > 0xF4 || text.size() < length) return 1;
  for (const char c : text.substr(1, length - 1)) {
    if (!ContinuesCharacter(c)) return 1;
  }
  return length;
}

// U+202A to U+202E and U+2066 to U+2069, which turn the direction of the text around them.
bool Turns(std::string_view character) {
  return (character >= "\u202A" && character <= "\u202E") ||
         (character >= "\u2066" && character <= "\u2069");
}

// True for a byte that a terminal obeys, also one of an 8-bit terminal.
bool IsControl(unsigned char byte) {
  return (byte < 0x20 && byte != '\n' && byte != '\t') || (byte >= 0x7F && byte < 0xA0);
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::string_view character = text.substr(0, LengthOfCharacter(text));
    const auto last = static_cast<unsigned char>(character.back());
    if (character.size() == 3 && Turns(character)) {
      const unsigned high = static_cast<unsigned char>(character[1]) & 0x3F;
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", 0x2000 | (high << 6) | (last & 0x3F));
    } else if (IsControl(last) && (character.size() == 1 || character[0] == '\xC2')) {
      // The two bytes of a wide control character become the number of the character.
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", last);
    } else {
      out += character;
    }
    text.remove_prefix(character.size());
  }
  return out;
}

std::string PythonRepr(double value) {
  // The shortest digits that read back, first with an exponent, which decides between the two
  // forms.
  char digits[32];
  const auto scientific =
      std::to_chars(digits, digits + sizeof(digits), value, std::chars_format::scientific);
  const std::string text(digits, scientific.ptr);
  const std::size_t e = text.find('e');
  if (e == std::string::npos) return text;  // nan, inf
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), text.data() + text.size(),
                  exponent);
  if (exponent < -4 || exponent >= 16) return text;
  char plain[32];
  const auto fixed = std::to_chars(plain, plain + sizeof(plain), value, std::chars_format::fixed);
  std::string out(plain, fixed.ptr);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

std::string FormatBytes(std::size_t bytes) {
  double value = static_cast<double>(bytes);
  if (bytes < 1024) return fmt::format("{} B", bytes);
  for (const char* unit : {"KiB", "MiB"}) {
    value /= 1024;
    // One decimal below 100, none above. 1023.5 would be rounded to 1024 of a unit.
    if (value < 1023.5) return fmt::format("{:.{}f} {}", value, value < 99.95 ? 1 : 0, unit);
  }
  return fmt::format("{:.2f} GiB", value / 1024);
}

std::string Counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace qlora
