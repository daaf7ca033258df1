#include "unicode/text_encoding.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace qlora {
namespace {

bool IsHigh(char c) { return static_cast<unsigned char>(c) >= 0x80; }

// Bytes beyond ASCII, in runs.
struct HighBytes {
  std::int64_t alone = 0;   // that have no other beside them
  std::int64_t joined = 0;  // in runs of two and more
  std::int64_t kana = 0;    // leads of Japanese letters in Shift_JIS
};

HighBytes CountHighBytes(std::string_view text) {
  HighBytes count;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && IsHigh(text[end])) ++end;
    const auto run = static_cast<std::int64_t>(end - at);
    (run == 1 ? count.alone : count.joined) += run;
    for (; at < end; ++at) count.kana += text[at] == '\x82' || text[at] == '\x83';
    ++at;
  }
  return count;
}

}  // namespace

std::string_view GuessEncoding(std::string_view text) {
  std::int64_t zeros[2] = {};
  for (std::size_t i = 0; i < text.size(); ++i) zeros[i % 2] += text[i] == '\0';
  const std::int64_t most = std::max(zeros[0], zeros[1]);
  if (most > std::ssize(text) / 8) return zeros[1] == most ? "UTF-16LE" : "UTF-16BE";
  const HighBytes high = CountHighBytes(text);
  // The second byte of a character in Shift_JIS and GB18030 may be ASCII, seldom for all of them.
  const std::int64_t all = high.alone + high.joined;
  if (high.kana > all / 5) return "SHIFT_JIS";
  return high.joined > all / 2 ? "GB18030" : "WINDOWS-1252";
}

}  // namespace qlora
