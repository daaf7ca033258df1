#include "task/python_literal.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <string>

#include "base/text.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::optional<OrderedJson> All() {
    std::optional<OrderedJson> value = Value(0);
    SkipSpace();
    return at_ == text_.size() ? value : std::nullopt;
  }

 private:
  static constexpr int kMaxDepth = 64;

  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void SkipSpace() {
    while (Peek() == ' ' || Peek() == '\n' || Peek() == '\t') ++at_;
  }

  std::optional<OrderedJson> Value(int depth) {
    if (depth > kMaxDepth) return std::nullopt;
    SkipSpace();
    const char c = Peek();
    if (c == '[' || c == '(') return List(c == '[' ? ']' : ')', depth);
    if (c == '\'' || c == '"') return Text();
    return Word();
  }

  std::optional<OrderedJson> List(char end, int depth) {
    ++at_;
    OrderedJson list = OrderedJson::array();
    for (SkipSpace(); Peek() != end; SkipSpace()) {
      std::optional<OrderedJson> item = Value(depth + 1);
      if (!item) return std::nullopt;
      list.push_back(*std::move(item));
      SkipSpace();
      if (Peek() == ',') {
        ++at_;
      } else if (Peek() != end) {
        return std::nullopt;
      }
    }
    ++at_;
    return list;
  }

  // Neighbours are joined: 'a' "b".
  std::optional<OrderedJson> Text() {
    std::string value;
    for (; Peek() == '\'' || Peek() == '"'; SkipSpace()) {
      const char quote = text_[at_++];
      while (Peek() != quote) {
        if (at_ >= text_.size() || Peek() == '\n') return std::nullopt;
        if (Peek() == '\\') {
          if (!Escape(value)) return std::nullopt;
        } else {
          value += text_[at_++];
        }
      }
      ++at_;
    }
    return value;
  }

  bool Escape(std::string& value) {
    constexpr std::string_view kLetters = "abfnrtv\\'\"0";
    constexpr std::string_view kValues("\a\b\f\n\r\t\v\\'\"\0", kLetters.size());
    const char c = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    at_ += 2;
    if (digits == 0) {
      const std::size_t known = kLetters.find(c);
      if (known == std::string_view::npos) return false;
      value += kValues[known];
      return true;
    }
    std::uint32_t code = 0;
    const std::string_view hex = text_.substr(std::min(at_, text_.size()), digits);
    const auto result = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
    if (hex.size() != digits || result.ptr != hex.data() + digits || code > 0x10FFFF) return false;
    AppendUtf8(static_cast<char32_t>(code), &value);
    at_ += digits;
    return true;
  }

  // True, False, None or a number.
  std::optional<OrderedJson> Word() {
    const std::size_t end = std::min(text_.find_first_of(" ,])\n\t", at_), text_.size());
    std::string_view word = text_.substr(at_, end - at_);
    at_ = end;
    if (word == "True" || word == "False") return word == "True";
    if (word == "None") return OrderedJson(nullptr);
    if (word.starts_with('+')) word.remove_prefix(1);
    const bool is_whole = word.find_first_of(".eE") == std::string_view::npos;
    return is_whole ? Number<std::int64_t>(word) : Number<double>(word);
  }

  template <typename T>
  static std::optional<OrderedJson> Number(std::string_view word) {
    const std::optional<T> value = ParseNumber<T>(word);
    return value ? std::optional<OrderedJson>(*value) : std::nullopt;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::optional<OrderedJson> ParsePythonLiteral(std::string_view text) { return Parser(text).All(); }

}  // namespace qlora
