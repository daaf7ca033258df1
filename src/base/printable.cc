#include "base/printable.h"

#include <fmt/format.h>

#include <charconv>
#include <iterator>

namespace qlora {

std::string Printable(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7F;
    // U+0080 to U+009F in UTF-8: 0xC2 and a byte from 0x80 to 0x9F.
    const bool wide_control = c == 0xC2 && i + 1 < text.size() &&
                              (static_cast<unsigned char>(text[i + 1]) & 0xE0) == 0x80;
    if (control || wide_control) {
      // The two bytes of a wide control character become the number of the character: \x80 to \x9f.
      const unsigned code = control ? c : static_cast<unsigned char>(text[++i]);
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", code);
    } else {
      out += text[i];
    }
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
