#include "tokenizer/normalizer_precompiled.h"

#include <utf8proc.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unicode/unicode.h"

namespace qlora {
namespace {

std::optional<std::string> DecodeBase64(std::string_view text) {
  static constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const std::size_t digit = kAlphabet.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(bits >> count & 0xFF));
  }
  return bytes;
}

// The file: u32 size of the trie in bytes; the trie, a Darts double array of u32 units; the
// replacement texts, each ended by a zero byte, to which the trie's values are offsets.
// A unit holds a label (bits 0-7, 31), a flag "a key ends here" (bit 8) and the offset to its
// children (bits 10-30, times 256 with bit 9); the unit of a value has bit 31 set.
class PrecompiledStep final : public Normalizer::Step {
 public:
  PrecompiledStep(std::vector<std::uint32_t> trie, std::string texts)
      : trie_(std::move(trie)), texts_(std::move(texts)) {}

  // Each grapheme cluster of fewer than six bytes is looked up as a whole, then, and in longer
  // ones, each character: what Hugging Face does.
  void Apply(NormalizedText* text) const override {
    std::string out;
    std::string_view rest = text->text;
    while (!rest.empty()) {
      const std::string_view grapheme = rest.substr(0, GraphemeLength(rest));
      rest.remove_prefix(grapheme.size());
      const auto whole = grapheme.size() < 6 ? Find(grapheme) : std::nullopt;
      if (whole) {
        out.append(*whole);
        continue;
      }
      for (std::size_t i = 0; i < grapheme.size();) {
        const auto length = static_cast<std::size_t>(Utf8Length(grapheme[i]));
        const std::string_view character = grapheme.substr(i, length);
        out.append(Find(character).value_or(character));
        i += length;
      }
    }
    text->text = std::move(out);
  }

 private:
  static std::size_t GraphemeLength(std::string_view text) {
    const char* p = text.data();
    const char* const end = p + text.size();
    utf8proc_int32_t state = 0;
    auto left = static_cast<utf8proc_int32_t>(NextCharacter(p));
    while (p < end) {
      const char* next = p;
      const auto right = static_cast<utf8proc_int32_t>(NextCharacter(next));
      if (utf8proc_grapheme_break_stateful(left, right, &state)) break;
      left = right;
      p = next;
    }
    return static_cast<std::size_t>(p - text.data());
  }

  // The replacement of the shortest key that `key` begins with.
  std::optional<std::string_view> Find(std::string_view key) const {
    const auto children = [](std::uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); };
    std::uint32_t node = children(trie_[0]);
    for (const char c : key) {
      const auto byte = static_cast<unsigned char>(c);
      node ^= byte;
      if (byte == 0 || node >= trie_.size()) return std::nullopt;
      const std::uint32_t unit = trie_[node];
      if ((unit & (1u << 31 | 0xFF)) != byte) return std::nullopt;
      node ^= children(unit);
      if ((unit >> 8 & 1) == 0) continue;
      if (node >= trie_.size()) return std::nullopt;
      const std::uint32_t offset = trie_[node] & ~(1u << 31);
      if (offset >= texts_.size()) return std::nullopt;
      return std::string_view(texts_.c_str() + offset);
    }
    return std::nullopt;
  }

  std::vector<std::uint32_t> trie_;
  std::string texts_;
};

}  // namespace

std::unique_ptr<const Normalizer::Step> MakePrecompiledStep(const JsonValue& charsmap) {
  static constexpr std::string_view kExpected = "a precompiled_charsmap in base64";
  const std::optional<std::string> bytes = DecodeBase64(charsmap.String());
  const auto word = [&](std::size_t at) {
    std::uint32_t value = 0;
    for (std::size_t i = 4; i-- > 0;) {
      value = value << 8 | static_cast<unsigned char>((*bytes)[at + i]);
    }
    return value;
  };
  if (!bytes || bytes->size() < 8) charsmap.Fail(kExpected);
  const std::uint32_t trie_bytes = word(0);
  if (trie_bytes < 4 || trie_bytes % 4 != 0 || trie_bytes > bytes->size() - 4) {
    charsmap.Fail(kExpected);
  }
  std::vector<std::uint32_t> trie;
  for (std::size_t at = 4; at < 4 + std::size_t{trie_bytes}; at += 4) trie.push_back(word(at));
  std::string texts = bytes->substr(4 + std::size_t{trie_bytes});
  if (std::string storage; ValidUtf8(texts, &storage).data() != texts.data()) {
    charsmap.Fail(kExpected);
  }
  return std::make_unique<PrecompiledStep>(std::move(trie), std::move(texts));
}

}  // namespace qlora
