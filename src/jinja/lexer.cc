#include "jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "jinja/failure.h"
#include "jinja/python_str.h"
#include "unicode/unicode.h"

namespace qlora::jinja {
namespace {

constexpr std::array<std::string_view, 24> kOperators = {
    "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">", "<", "=", ".", ":", "|", ","};

bool IsAsciiDigit(char c) { return c >= '0' && c <= '9'; }

// Finds the tags {{ }}, {% %} and comments {# #}; the rest is text. Each tag may take white space
// off the text around it. A sign behind its beginning or before its end decides, else the rules
// that transformers sets, lstrip_blocks and trim_blocks ("." is a space, "/" a line end):
//
//   text..{%- x -%}/..text    all white space on the side of the '-'
//   text/..{% x %}/..text     the spaces from the start of the line, and the line end behind
//   text/..{%+ x +%}/..text   nothing on the side of the '+'
//   text/..{{ x }}/..text     nothing; {{- x -}} as above
//
// A comment is treated as {% %}.
class Lexer {
 public:
  explicit Lexer(const std::string& source) : source_(source) {}

  std::vector<Token> Run() {
    while (at_ < source_.size()) {
      const std::size_t tag = FindTag();
      if (tag == std::string::npos) {
        AddText(Rest(at_));
        at_ = source_.size();
      } else if (source_[tag + 1] == '#') {
        LexComment(tag);
      } else {
        LexTag(tag);
      }
    }
    Add(Token::kEnd, at_);
    return std::move(tokens_);
  }

 private:
  std::string_view Rest(std::size_t at) const { return std::string_view(source_).substr(at); }
  char Peek(std::size_t at) const { return at < source_.size() ? source_[at] : '\0'; }
  char SignAt(std::size_t at) const {
    const char c = Peek(at);
    return c == '-' || c == '+' ? c : '\0';
  }
  std::size_t SkipSpace(std::size_t at) const {
    return source_.size() - StripText(Rest(at), Side::kLeft).size();
  }

  void Add(Token::Kind kind, std::size_t offset, std::string text = "") {
    tokens_.push_back({kind, offset, std::move(text)});
  }
  void AddText(std::string_view text) {
    if (!text.empty()) Add(Token::kText, at_, std::string(text));
  }

  std::size_t FindTag() const {
    for (std::size_t at = at_; (at = source_.find('{', at)) != std::string::npos; ++at) {
      const char next = Peek(at + 1);
      if (next == '{' || next == '%' || next == '#') return at;
    }
    return std::string::npos;
  }

  // Adds the text up to `end`, where a tag begins.
  void AddTextBefore(std::size_t end, char sign, bool is_output) {
    std::string_view text = Rest(at_).substr(0, end - at_);
    if (sign == '-') {
      text = StripText(text, Side::kRight);
    } else if (sign != '+' && !is_output) {
      const std::size_t newline = text.rfind('\n');
      const bool starts_line = at_ == 0 || source_[at_ - 1] == '\n';
      const std::size_t line = newline == std::string_view::npos ? 0 : newline + 1;
      const bool has_line = newline != std::string_view::npos || starts_line;
      if (has_line && StripText(text.substr(line)).empty()) text = text.substr(0, line);
    }
    AddText(text);
  }

  // Continues behind a tag that ends at `at`.
  void SkipBehind(std::size_t at, char sign, bool is_output) {
    at_ = at;
    if (sign == '-') {
      at_ = SkipSpace(at_);
    } else if (sign != '+' && !is_output && Peek(at_) == '\n') {
      ++at_;
    }
  }

  void LexComment(std::size_t begin) {
    const char sign = SignAt(begin + 2);
    const std::size_t body = begin + 2 + (sign != '\0' ? 1 : 0);
    const std::size_t end = source_.find("#}", body);
    if (end == std::string::npos) FailAt(begin, "the comment has no end '#}}'");
    AddTextBefore(begin, sign, /*is_output=*/false);
    SkipBehind(end + 2, end > body ? SignAt(end - 1) : '\0', /*is_output=*/false);
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
    const char* end = source_.data() + at_;
    while (end < source_.data() + source_.size()) {
      const char* next = end;
      const char32_t letter = NextCharacter(next);
      if (letter != '_' && !IsWordCharacter(letter)) break;
      end = next;
    }
    const std::size_t size = end - (source_.data() + at_);
    if (size == 0) return LexOperator(open);
    Add(Token::kName, at_, source_.substr(at_, size));
    at_ += size;
  }

  void LexOperator(std::string& open) {
    const auto op = std::find_if(kOperators.begin(), kOperators.end(),
                                 [&](std::string_view o) { return Rest(at_).starts_with(o); });
    if (op == kOperators.end()) {
      FailAt(at_, "the character '{}' is not expected",
             Rest(at_).substr(0, Utf8Length(source_[at_])));
    }
    if (*op == "(" || *op == "[" || *op == "{") {
      open += *op == "(" ? ')' : *op == "[" ? ']' : '}';
    } else if (*op == ")" || *op == "]" || *op == "}") {
      if (open.empty()) FailAt(at_, "'{}' closes nothing", *op);
      if (open.back() != op->front()) FailAt(at_, "expected '{}', found '{}'", open.back(), *op);
      open.pop_back();
    }
    Add(Token::kOperator, at_, std::string(*op));
    at_ += op->size();
  }

  // 12 or 1.5; other forms, such as 0x1F, 1e5 and 1_000, end as a number and a name, which the
  // parser refuses.
  void LexNumber() {
    const std::size_t begin = at_;
    while (IsAsciiDigit(Peek(at_))) ++at_;
    const bool is_float = Peek(at_) == '.' && IsAsciiDigit(Peek(at_ + 1));
    if (is_float) ++at_;
    while (is_float && IsAsciiDigit(Peek(at_))) ++at_;
    Add(is_float ? Token::kFloat : Token::kInteger, begin, source_.substr(begin, at_ - begin));
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

  // An escape sequence of Python at at_: \n, \x41, \u00e9, \U0001F600 or a backslash at a line end.
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
      UnescapeCode(c == 'x' ? 2 : c == 'u' ? 4 : 8, value);
    } else if (c == 'N' || IsAsciiDigit(c)) {
      FailAt(at_, "the escape sequence '\\{}' is not supported", c);
    } else {
      value += source_[at_++];  // an unknown escape stays as it is
    }
  }

  void UnescapeCode(std::size_t digits, std::string& value) {
    std::uint32_t code = 0;
    const std::string_view text = Rest(std::min(at_ + 2, source_.size())).substr(0, digits);
    const auto result = std::from_chars(text.data(), text.data() + text.size(), code, 16);
    const bool is_surrogate = code >= 0xD800 && code < 0xE000;
    if (text.size() < digits || result.ptr != text.data() + digits || is_surrogate ||
        code > 0x10FFFF) {
      FailAt(at_, "the escape sequence is not a character");
    }
    AppendUtf8(static_cast<char32_t>(code), &value);
    at_ += 2 + digits;
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
