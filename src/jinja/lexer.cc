#include "jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "jinja/python_str.h"
#include "jinja/value.h"
#include "unicode/unicode.h"

namespace qlora::jinja {
namespace {

constexpr std::array<std::string_view, 27> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]",
    "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";", "!"};

bool IsAsciiDigit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(const std::string& source) : source_(source) {}

  std::vector<Token> Run() {
    while (at_ < source_.size()) {
      const std::size_t tag = FindTag();
      if (tag == std::string::npos) {
        AddText(source_.substr(at_));
        at_ = source_.size();
      } else if (source_[tag + 1] == '#') {
        LexComment(tag);
      } else if (!LexRaw(tag)) {
        LexTag(tag);
      }
    }
    Add(Token::kEnd, at_);
    return std::move(tokens_);
  }

 private:
  std::string_view Rest(std::size_t at) const { return std::string_view(source_).substr(at); }

  char Peek(std::size_t at) const { return at < source_.size() ? source_[at] : '\0'; }

  void Add(Token::Kind kind, std::size_t offset, std::string text = "") {
    tokens_.push_back({kind, offset, std::move(text)});
  }

  void AddText(std::string text) {
    if (!text.empty()) Add(Token::kText, at_, std::move(text));
  }

  std::size_t FindTag() const {
    for (std::size_t at = at_; (at = source_.find('{', at)) != std::string::npos; ++at) {
      const char next = Peek(at + 1);
      if (next == '{' || next == '%' || next == '#') return at;
    }
    return std::string::npos;
  }

  std::size_t SkipSpace(std::size_t at) const {
    return source_.size() - Strip(Rest(at), Side::kLeft).size();
  }

  // The text up to `end`, where a tag with this sign (- + or none) begins.
  void AddTextBefore(std::size_t end, char sign, bool is_output) {
    std::string_view text = Rest(at_).substr(0, end - at_);
    if (sign == '-') {
      text = Strip(text, Side::kRight);
    } else if (sign != '+' && !is_output) {
      const std::size_t newline = text.rfind('\n');
      const bool starts_line = at_ == 0 || source_[at_ - 1] == '\n';
      if (newline != std::string_view::npos || starts_line) {
        const std::size_t line = newline == std::string_view::npos ? 0 : newline + 1;
        if (Strip(text.substr(line)).empty()) text = text.substr(0, line);
      }
    }
    AddText(std::string(text));
  }

  // Behind a tag that ends at `at`.
  void SkipBehind(std::size_t at, char sign, bool is_output) {
    at_ = at;
    if (sign == '-') {
      at_ = SkipSpace(at_);
    } else if (sign != '+' && !is_output && Peek(at_) == '\n') {
      ++at_;
    }
  }

  char SignAt(std::size_t at) const {
    const char c = Peek(at);
    return c == '-' || c == '+' ? c : '\0';
  }

  void LexComment(std::size_t begin) {
    const char sign = SignAt(begin + 2);
    const std::size_t body = begin + 2 + (sign != '\0' ? 1 : 0);
    const std::size_t end = source_.find("#}", body);
    if (end == std::string::npos) FailAt(begin, "the comment has no end '#}}'");
    AddTextBefore(begin, sign, /*is_output=*/false);
    SkipBehind(end + 2, end > body ? SignAt(end - 1) : '\0', /*is_output=*/false);
  }

  // Whether `word` and the end of the tag stand at `at`; then *end is behind it, *sign before it.
  bool MatchTag(std::size_t at, std::string_view word, std::size_t* end, char* sign) const {
    at = SkipSpace(at);
    if (!Rest(at).starts_with(word)) return false;
    at = SkipSpace(at + word.size());
    *sign = SignAt(at);
    if (*sign != '\0') ++at;
    *end = at + 2;
    return Rest(at).starts_with("%}");
  }

  bool LexRaw(std::size_t begin) {
    if (source_[begin + 1] != '%') return false;
    const char sign = SignAt(begin + 2);
    std::size_t body = 0;
    char behind = '\0';
    if (!MatchTag(begin + 2 + (sign != '\0' ? 1 : 0), "raw", &body, &behind)) return false;
    AddTextBefore(begin, sign, /*is_output=*/false);
    SkipBehind(body, behind == '-' ? '-' : '+', /*is_output=*/false);
    for (std::size_t at = at_; (at = source_.find("{%", at)) != std::string::npos; ++at) {
      const char end_sign = SignAt(at + 2);
      std::size_t end = 0;
      if (!MatchTag(at + 2 + (end_sign != '\0' ? 1 : 0), "endraw", &end, &behind)) continue;
      AddTextBefore(at, end_sign, /*is_output=*/false);
      SkipBehind(end, behind, /*is_output=*/false);
      return true;
    }
    FailAt(begin, "the block 'raw' has no end 'endraw'");
  }

  void LexTag(std::size_t begin) {
    const bool is_output = source_[begin + 1] == '{';
    const char sign = SignAt(begin + 2);
    AddTextBefore(begin, sign, is_output);
    Add(is_output ? Token::kOutputBegin : Token::kTagBegin, begin);
    at_ = begin + 2 + (sign != '\0' ? 1 : 0);
    std::string open;  // the closing partners of the brackets that are open
    for (at_ = SkipSpace(at_); at_ < source_.size(); at_ = SkipSpace(at_)) {
      if (open.empty() && EndTag(is_output)) return;
      LexInside(open);
    }
    FailAt(begin, "the tag has no end '{}'", is_output ? "}}" : "%}");
  }

  bool EndTag(bool is_output) {
    const char sign = SignAt(at_);
    if (sign == '+' && is_output) return false;
    const std::size_t end = at_ + (sign != '\0' ? 1 : 0);
    if (!Rest(end).starts_with(is_output ? "}}" : "%}")) return false;
    Add(is_output ? Token::kOutputEnd : Token::kTagEnd, at_);
    SkipBehind(end + 2, sign, is_output);
    return true;
  }

  void LexInside(std::string& open) {
    const char c = source_[at_];
    if (IsAsciiDigit(c)) return LexNumber();
    if (c == '"' || c == '\'') return LexString(c);
    std::size_t end = at_;
    while (end < source_.size()) {
      const char* p = source_.data() + end;
      const char32_t letter = NextCharacter(p);
      if (letter != '_' && !IsWordCharacter(letter)) break;
      end = static_cast<std::size_t>(p - source_.data());
    }
    if (end > at_) {
      Add(Token::kName, at_, source_.substr(at_, end - at_));
      at_ = end;
      return;
    }
    const auto op = std::find_if(kOperators.begin(), kOperators.end(),
                                 [&](std::string_view o) { return Rest(at_).starts_with(o); });
    if (op == kOperators.end()) {
      FailAt(at_, "the character '{}' is not expected", Rest(at_).substr(0, Utf8Length(c)));
    }
    Balance(*op, open);
    Add(Token::kOperator, at_, std::string(*op));
    at_ += op->size();
  }

  void Balance(std::string_view op, std::string& open) const {
    if (op == "(" || op == "[" || op == "{") {
      open += op == "(" ? ')' : op == "[" ? ']' : '}';
    } else if (op == ")" || op == "]" || op == "}") {
      if (open.empty()) FailAt(at_, "'{}' closes nothing", op);
      if (open.back() != op.front()) FailAt(at_, "expected '{}', found '{}'", open.back(), op);
      open.pop_back();
    }
  }

  std::size_t SkipDigits(std::size_t at) const {
    while (IsAsciiDigit(Peek(at)) || (Peek(at) == '_' && IsAsciiDigit(Peek(at + 1)))) ++at;
    return at;
  }

  void LexNumber() {
    const std::size_t begin = at_;
    const bool behind_dot = begin > 0 && source_[begin - 1] == '.';  // x.0.1 has two indices
    if (source_[begin] == '0' && std::string_view("xXoObB").find(Peek(begin + 1)) < 6) {
      FailAt(begin, "a number with a base is not supported");
    }
    at_ = SkipDigits(begin);
    const std::size_t integer_end = at_;
    if (!behind_dot && Peek(at_) == '.' && IsAsciiDigit(Peek(at_ + 1))) at_ = SkipDigits(at_ + 1);
    if (!behind_dot && (Peek(at_) | 32) == 'e') {
      const std::size_t digits = at_ + (SignAt(at_ + 1) != '\0' ? 2 : 1);
      if (IsAsciiDigit(Peek(digits))) at_ = SkipDigits(digits);
    }
    std::string text = source_.substr(begin, at_ - begin);
    std::erase(text, '_');
    Add(at_ == integer_end ? Token::kInteger : Token::kFloat, begin, std::move(text));
  }

  void LexString(char quote) {
    const std::size_t begin = at_++;
    std::string value;
    while (Peek(at_) != quote) {
      if (at_ >= source_.size()) FailAt(begin, "the string has no end {}", quote);
      if (source_[at_] == '\\') {
        Unescape(value);
      } else {
        value += source_[at_++];
      }
    }
    ++at_;
    Add(Token::kString, begin, std::move(value));
  }

  // An escape sequence of Python at at_.
  void Unescape(std::string& value) {
    constexpr std::string_view kLetters = "abfnrtv\\'\"";
    constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
    const char c = Peek(at_ + 1);
    if (const std::size_t known = kLetters.find(c); known != std::string_view::npos) {
      value += kValues[known];
      at_ += 2;
    } else if (c == '\n') {
      at_ += 2;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      UnescapeCode(at_ + 2, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16, value);
    } else if (c >= '0' && c <= '7') {
      std::size_t digits = 1;
      while (digits < 3 && Peek(at_ + 1 + digits) >= '0' && Peek(at_ + 1 + digits) <= '7') ++digits;
      UnescapeCode(at_ + 1, digits, 8, value);
    } else if (c == 'N') {
      FailAt(at_, "a character by its name, '\\N', is not supported");
    } else {
      value += source_[at_++];  // an unknown escape stands for itself
    }
  }

  void UnescapeCode(std::size_t begin, std::size_t digits, int base, std::string& value) {
    std::uint32_t code = 0;
    const char* first = source_.data() + std::min(begin, source_.size());
    const char* last = source_.data() + std::min(begin + digits, source_.size());
    const auto result = std::from_chars(first, last, code, base);
    const bool surrogate = code >= 0xD800 && code < 0xE000;
    if (result.ec != std::errc() || result.ptr != source_.data() + begin + digits || surrogate ||
        code > 0x10FFFF) {
      FailAt(at_, "the escape sequence is not a character");
    }
    AppendUtf8(static_cast<char32_t>(code), &value);
    at_ = begin + digits;
  }

  const std::string& source_;
  std::size_t at_ = 0;
  std::vector<Token> tokens_;
};

}  // namespace

std::string NormalizeSource(std::string_view text) {
  std::string storage;
  if (ValidUtf8(text, &storage).data() != text.data() && !text.empty()) {
    FailAt(0, "the template is not UTF-8");
  }
  std::string source;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') {
      source += text[i];
    } else if (i + 1 == text.size() || text[i + 1] != '\n') {
      source += '\n';
    }
  }
  if (source.ends_with('\n')) source.pop_back();
  return source;
}

std::vector<Token> Tokenize(const std::string& source) { return Lexer(source).Run(); }

}  // namespace qlora::jinja
