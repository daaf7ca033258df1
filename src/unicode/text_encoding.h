// The encodings of texts that are not UTF-8, by their bytes.
#ifndef QLORA_UNICODE_TEXT_ENCODING_H_
#define QLORA_UNICODE_TEXT_ENCODING_H_

#include <string_view>

namespace qlora {

// Returns the name that iconv has for the encoding that `text`, which is not UTF-8, most likely
// has: UTF-16LE, UTF-16BE, GB18030, SHIFT_JIS or WINDOWS-1252. A guess: letters of the languages of
// Western Europe stand alone between ASCII, those of East Asia in pairs of bytes.
std::string_view GuessEncoding(std::string_view text);

}  // namespace qlora

#endif  // QLORA_UNICODE_TEXT_ENCODING_H_
