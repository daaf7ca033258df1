#include "data/audit/lost_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/printable.h"
#include "base/text.h"
#include "prompt/prompt_layout.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

constexpr std::int64_t kRecords = 16;
constexpr std::size_t kMostBytes = 4096;  // of one text

// A text without white space, each character in one form.
struct SpacedText {
  std::string text;
  std::vector<std::size_t> gaps;  // places in it where white space stood between two words
};

SpacedText SpacedTextOf(std::string_view text) {
  const std::string normal = Normalize(text, NormalForm::kNfc);
  SpacedText out;
  bool in_word = false;
  bool gap = false;
  for (const char* p = normal.data(); p < normal.data() + normal.size();) {
    const char* const begin = p;
    const char32_t c = NextCharacter(p);
    if (IsWhitespace(c)) {
      gap = in_word;
      continue;
    }
    if (gap && IsWordCharacter(c)) out.gaps.push_back(out.text.size());
    gap = false;
    in_word = IsWordCharacter(c);
    out.text.append(begin, p);
  }
  return out;
}

// The last `most` bytes, whole characters.
std::string_view End(std::string_view text, std::size_t most) {
  std::size_t begin = text.size() - std::min(most, text.size());
  while (begin < text.size() && ContinuesCharacter(text[begin])) ++begin;
  return text.substr(begin);
}

// The words around the first gap of `before` that `after` lacks; "" where it has all.
std::string LostGap(const SpacedText& before, const SpacedText& after) {
  for (const std::size_t gap : before.gaps) {
    if (std::ranges::binary_search(after.gaps, gap)) continue;
    const std::string_view text = before.text;
    return fmt::format("{} {}", End(text.substr(0, gap), 8), FirstBytes(text.substr(gap), 8));
  }
  return {};
}

}  // namespace

std::string LostText(const Tokenizer& tokenizer, std::string_view text) {
  std::string storage;
  const std::string_view valid = ValidUtf8(FirstBytes(text, kMostBytes), &storage);
  const SpacedText all = SpacedTextOf(valid);
  const std::vector<std::int32_t> ids = tokenizer.Encode(valid, /*add_special_tokens=*/false);
  const SpacedText found = SpacedTextOf(tokenizer.Decode(ids, /*skip_special_tokens=*/false));
  if (all.text == found.text) return LostGap(all, found);
  const std::string& before = all.text;
  const std::string& after = found.text;
  std::size_t at = static_cast<std::size_t>(
      std::mismatch(before.begin(), before.end(), after.begin(), after.end()).first -
      before.begin());
  // The start of the character that differs.
  while (at > 0 && at < before.size() && ContinuesCharacter(before[at])) --at;
  return std::string(FirstBytes(std::string_view(before).substr(at), 16));
}

std::string WarnOfLostText(const Dataset& dataset, const Tokenizer& tokenizer) {
  std::string lost;
  const std::function<void(const OrderedJson&)> look = [&](const OrderedJson& value) {
    if (!lost.empty()) return;
    if (value.is_string()) {
      lost = LostText(tokenizer, value.get_ref<const std::string&>());
    } else if (value.is_structured()) {
      for (const OrderedJson& item : value) look(item);
    }
  };
  for (std::int64_t i = 0; i < std::min(kRecords, dataset.size()); ++i) {
    const std::optional<OrderedJson> record = dataset.ReadRecord(i);
    if (!record || !record->is_object()) continue;
    const RecordLayout layout(dataset.LayoutOf(i));
    for (const auto& [name, value] : record->items()) {
      if (layout.Uses(name)) look(value);
    }
  }
  if (lost.empty()) return {};
  return "the tokenizer loses text of the data: encoded and decoded again, '" + Printable(lost) +
         "' does not come back; is tokenizer.json complete, and made for these data?" +
         (lost.find(' ') == std::string::npos
              ? ""
              : " A tokenizer of bytes that was saved as one of SentencePiece loses the spaces: "
                "take the tokenizer.json of the original model");
}

}  // namespace qlora
