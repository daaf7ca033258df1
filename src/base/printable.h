// Text of files and models as a terminal may show it.
#ifndef QLORA_BASE_PRINTABLE_H_
#define QLORA_BASE_PRINTABLE_H_

#include <string>
#include <string_view>

namespace qlora {

// Control characters other than line feed and tab, which terminals may obey, become \xNN: bytes
// below 0x20, 0x7F, and U+0080 to U+009F in UTF-8.
std::string Printable(std::string_view text);

}  // namespace qlora

#endif  // QLORA_BASE_PRINTABLE_H_
