// Text of files and models as a terminal may show it, numbers as Python prints them, and
// sizes in bytes.
#ifndef QLORA_BASE_PRINTABLE_H_
#define QLORA_BASE_PRINTABLE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace qlora {

// Control characters other than line feed and tab, which terminals may obey, become \xNN: bytes
// below 0x20, 0x7F, and 0x80 to 0x9F, alone or as U+0080 to U+009F. Characters that turn the
// direction of text become \u202e and the like.
std::string Printable(std::string_view text);

// Returns a double as Python's repr and json.dumps print it: shortest digits that read back to the
// same value, an exponent below 1e-4 and from 1e16 on ("0.0123", "1e-05", "6.0").
std::string PythonRepr(double value);

std::string FormatBytes(std::size_t bytes);  // "3.20 GiB"

std::string Counted(std::int64_t count, std::string_view noun);  // "1 token", "2 tokens"

}  // namespace qlora

#endif  // QLORA_BASE_PRINTABLE_H_
