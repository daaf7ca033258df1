#include "tokenizer/byte_characters.h"

#include <array>
#include <charconv>
#include <cstdint>

#include "unicode/unicode.h"

namespace qlora {
namespace {

// Visible in Latin-1: neither a control character, a space (0x20, 0xA0) nor the soft hyphen.
constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

constexpr auto kByteCharacters = [] {
  std::array<char32_t, 256> table = {};
  // GPT-2's bytes_to_unicode: the 68 other bytes take U+0100 ... U+0143 in ascending order. The
  // space becomes U+0120, the line feed U+010A.
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    table[byte] = StandsForItself(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return table;
}();

// 0x100 + the 68 bytes that are not written as themselves.
constexpr char32_t kByteCharacterLimit = 0x144;
// The inverse: -1 for characters that represent no byte.
constexpr auto kCharacterBytes = [] {
  std::array<std::int16_t, kByteCharacterLimit> table = {};
  for (std::int16_t& byte : table) byte = -1;
  for (std::int16_t byte = 0; byte < 256; ++byte) table[kByteCharacters[byte]] = byte;
  return table;
}();

}  // namespace

char32_t ByteCharacter(unsigned char byte) { return kByteCharacters[byte]; }

std::optional<std::string> BytesOfByteCharacters(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (const char* p = text.data(); p < text.data() + text.size();) {
    const char32_t c = NextCharacter(p);
    // Added tokens are plain text, which may hold any character.
    if (c >= kByteCharacterLimit || kCharacterBytes[c] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kCharacterBytes[c]));
  }
  return bytes;
}

int ByteOfToken(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  unsigned byte = 0;
  const char* digits = token.data() + 3;
  return std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2 ? static_cast<int>(byte)
                                                                         : -1;
}

}  // namespace qlora
