// Small operations on text that several folders need.
#ifndef QLORA_BASE_TEXT_H_
#define QLORA_BASE_TEXT_H_

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace qlora {

// Replaces ASCII letters of the other case.
inline std::string LowerCase(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}
inline std::string UpperCase(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

// Returns the text without the spaces, tabs and line ends at the end, or around the text.
inline std::string_view TrimEnd(std::string_view text) {
  return text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
}
inline std::string_view Trim(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  return TrimEnd(text);
}

// True for a byte of UTF-8 that begins no character.
constexpr bool ContinuesCharacter(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

// Returns the number of characters of a text of UTF-8.
inline std::int64_t CountCharacters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return !ContinuesCharacter(c); });
}

// Returns the beginning of a text of UTF-8: at most so many bytes, and no part of a character.
inline std::string_view FirstBytes(std::string_view text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && ContinuesCharacter(text[bytes])) --bytes;
  return text.substr(0, bytes);
}

// Returns the words of a list, without empty ones.
inline std::vector<std::string_view> Words(std::string_view list, char separator = ' ') {
  std::vector<std::string_view> words;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(separator), list.size());
    if (end > 0) words.push_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return words;
}

// True when `word` is one of the words of `list`.
inline bool HasWord(std::string_view list, std::string_view word, char separator = ' ') {
  return std::ranges::count(Words(list, separator), word) > 0;
}

// Returns `text` with every `from`, which is not empty, replaced by `to`.
inline std::string ReplaceAll(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// Returns the number that all of `text` is, for double also inf and nan; nothing for other texts
// and for numbers that T cannot hold. In every locale 0.5 is a half.
template <typename T>
std::optional<T> ParseNumber(std::string_view text) {
  T value = {};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace qlora

#endif  // QLORA_BASE_TEXT_H_
