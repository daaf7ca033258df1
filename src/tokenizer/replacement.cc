#include "tokenizer/replacement.h"

#include <algorithm>

#include "unicode/unicode.h"

namespace qlora {

// A fixed text of p bytes that c bytes replace makes a text at most c / p times as long.
Replacement::Replacement(const JsonValue& step)
    : pattern_(ParsePattern(step["pattern"])), content_(step["content"].String()) {
  const auto content_bytes = static_cast<double>(content_.size());
  growth_ = 1 + content_bytes;  // a regular expression may match before every byte, and keep it
  if (const JsonValue literal = step["pattern"]["String"]; !literal.IsNull()) {
    const std::string text = literal.String();
    // At least 1: a text without a match stays as long as it is.
    growth_ = std::max(1.0, content_bytes / static_cast<double>(text.size()));
    is_character_ = Utf8Length(text[0]) == std::ssize(text);
  }
}

std::string Replacement::Apply(std::string_view text, std::int64_t* front) const {
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  std::int64_t copied = 0;
  if (front != nullptr) *front = 0;
  pattern_->ForEachMatch(text, [&](std::int64_t begin, std::int64_t end) {
    // The match at the start, which tells the normalizer whether the first character is still the
    // first.
    if (front != nullptr && begin == 0) *front = end;
    out.append(text.substr(copied, begin - copied));
    out.append(content_);
    copied = end;
  });
  out.append(text.substr(copied));
  return out;
}

}  // namespace qlora
