// GPT-2's printable stand-ins for bytes. The pieces of a byte-level vocabulary are written with 256
// characters, one for each byte, so that no piece holds a space or a control character: the piece
// "\u0120the" means " the".
#ifndef QLORA_TOKENIZER_BYTE_CHARACTERS_H_
#define QLORA_TOKENIZER_BYTE_CHARACTERS_H_

#include <optional>
#include <string>
#include <string_view>

namespace qlora {

// The character of a byte: printable Latin-1 characters for themselves, the other 68 bytes, in
// order, U+0100 to U+0143.
char32_t ByteCharacter(unsigned char byte);

// The bytes that `text` represents; nothing when it has other characters.
std::optional<std::string> BytesOfByteCharacters(std::string_view text);

// ---- Of vocabularies that are not byte-level.

// U+2581, which SentencePiece writes in place of a space.
inline constexpr std::string_view kMetaspace = "\xE2\x96\x81";

// The byte of a token <0x00> ... <0xFF>, or -1.
int ByteOfToken(std::string_view token);

}  // namespace qlora

#endif  // QLORA_TOKENIZER_BYTE_CHARACTERS_H_
