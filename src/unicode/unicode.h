// UTF-8, and character classes and normal forms as Hugging Face tokenizers (Rust crate
// "tokenizers") has them. Its parts carry tables of several Unicode versions, and equal ids need
// the same; the differences from Unicode 14 (utf8proc 2.8, PCRE2 10.42) are in unicode_tables.h.
#ifndef QLORA_UNICODE_UNICODE_H_
#define QLORA_UNICODE_UNICODE_H_

#include <array>
#include <string>
#include <string_view>

#include "base/text.h"

namespace qlora {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// The front of `text` (not empty): a character of `length` bytes, or an ill-formed piece of
// `length` bytes. `incomplete`: the whole of `text` is the beginning of a character.
struct Utf8Step {
  int length;
  bool valid;
  bool incomplete;
};
Utf8Step StepUtf8(std::string_view text);

// `text` itself when it is valid UTF-8; otherwise a copy in *storage in which every ill-formed
// piece is one U+FFFD (a piece is the longest beginning of a character, otherwise one byte: Unicode
// 3.9, "maximal subparts"; the rule of Python's errors="replace", Rust's from_utf8_lossy and
// browsers).
std::string_view ValidUtf8(std::string_view text, std::string* storage);

// The functions below expect valid UTF-8.

inline int Utf8Length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Returns the character at p and moves p behind it.
inline char32_t NextCharacter(const char*& p) {
  const auto at = [&](int i) { return static_cast<char32_t>(static_cast<unsigned char>(p[i])); };
  const char32_t lead = at(0);
  char32_t c = lead;
  if (lead < 0x80) {
    p += 1;
  } else if (lead < 0xE0) {
    c = (lead & 0x1F) << 6 | (at(1) & 0x3F);
    p += 2;
  } else if (lead < 0xF0) {
    c = (lead & 0x0F) << 12 | (at(1) & 0x3F) << 6 | (at(2) & 0x3F);
    p += 3;
  } else {
    c = (lead & 0x07) << 18 | (at(1) & 0x3F) << 12 | (at(2) & 0x3F) << 6 | (at(3) & 0x3F);
    p += 4;
  }
  return c;
}

// The start of the character that ends before p.
inline const char* PreviousCharacter(const char* p) {
  do {
    --p;
  } while (ContinuesCharacter(*p));
  return p;
}

void AppendUtf8(char32_t c, std::string* text);

// Classes of the split expressions: Unicode 16 general categories, as Oniguruma has them.
enum CharClass : unsigned {
  kLetter = 1,         // L
  kNumber = 2,         // N
  kSpace = 4,          // White_Space
  kLineEnd = 8,        // \r \n
  kUpperOrTitle = 16,  // Lu, Lt
  kLower = 32,         // Ll
  kOtherLetter = 64,   // Lm, Lo
  kMark = 128,         // M
};
unsigned ClassOfWide(char32_t c);

inline constexpr auto kAsciiClasses = [] {
  std::array<unsigned char, 128> table = {};
  for (unsigned char c = '0'; c <= '9'; ++c) table[c] = kNumber;
  for (unsigned char c = 'A'; c <= 'Z'; ++c) table[c] = kLetter | kUpperOrTitle;
  for (unsigned char c = 'a'; c <= 'z'; ++c) table[c] = kLetter | kLower;
  for (unsigned char c = '\t'; c <= '\r'; ++c) table[c] = kSpace;
  table[' '] = kSpace;
  table['\r'] = table['\n'] = kSpace | kLineEnd;
  return table;
}();
inline unsigned ClassOf(char32_t c) { return c < 128 ? kAsciiClasses[c] : ClassOfWide(c); }

bool IsWhitespace(char32_t c);     // White_Space
bool IsNumeric(char32_t c);        // Rust's char::is_numeric: N of Unicode 17
bool IsWordCharacter(char32_t c);  // \w of Rust's regex: Alphabetic, M, Nd, Pc, Join_Control
bool IsPunctuation(char32_t c);    // ASCII punctuation, or P of Unicode 8

// Unicode's lower case of one character, without context (U+0130 gives two characters).
void AppendLowerCase(char32_t c, std::string* text);
// The lower case of each character of any text; ill-formed pieces are U+FFFD.
std::string LowerText(std::string_view text);

enum class NormalForm { kNfc, kNfkc };
// The normal form of Unicode 9: later characters neither decompose, nor compose, nor move.
std::string Normalize(std::string_view text, NormalForm form);

}  // namespace qlora

#endif  // QLORA_UNICODE_UNICODE_H_
