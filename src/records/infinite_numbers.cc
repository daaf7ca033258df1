#include "records/infinite_numbers.h"

#include <algorithm>
#include <charconv>
#include <system_error>

namespace qlora {
namespace {

constexpr std::string_view kEndOfWord = " \t\r\n,:[]{}\"";

bool IsInfiniteWord(std::string_view word) {
  return word == "NaN" || word == "Infinity" || word == "-Infinity";
}

bool IsInfiniteNumber(std::string_view word) {
  const bool is_number = !word.empty() && (word[0] == '-' || (word[0] >= '0' && word[0] <= '9'));
  if (!is_number || word.find_first_of(".eE") == word.npos) return false;
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  // Too small a number has the same error, and is not infinite.
  const std::size_t exponent = word.find_first_of("eE");
  return error == std::errc::result_out_of_range && end == word.data() + word.size() &&
         (exponent == word.npos || word[exponent + 1] != '-');
}

}  // namespace

std::string WithoutInfinities(std::string_view text, bool numbers) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at + 1;
    if (text[at] == '"') {
      while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
      end = std::min(end + 1, text.size());
    } else if (kEndOfWord.find(text[at]) == kEndOfWord.npos) {
      end = std::min(text.find_first_of(kEndOfWord, at), text.size());
      const std::string_view word = text.substr(at, end - at);
      if (IsInfiniteWord(word) || (numbers && IsInfiniteNumber(word))) {
        out += "null";
        at = end;
        continue;
      }
    }
    out += text.substr(at, end - at);
    at = end;
  }
  return out;
}

}  // namespace qlora
