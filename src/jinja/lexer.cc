#include "jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "jinja/failure.h"
#include "jinja/python_str.h"
#include "unicode/unicode.h"

namespace qlora::jinja {
namespace {

// Longer ones first.
constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                           "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                           ">",  "<",  "=",  ".",  ":",  "|",  ","};

bool IsAsciiDigit(char c) { return c >= '0' && c <= '9'; }

// Finds the tags {{ }}, {% %} and comments {# #}; the rest is text. Each tag may take white space
// off the text around it. A sign behind its beginning or before its end decides, otherwise the
// rules lstrip_blocks and trim_blocks, which transformers sets ("." is a space, "/" a line end):
//
//   text..{%- x -%}/..text    takes all white space on the side of the '-'
//   text/..{% x %}/..text     takes the spaces from the start of the line, and the line end behind
//   text/..{%+ x +%}/..text   takes nothing on the side of the '+'
//   text/..{{ x }}/..text     takes nothing; {{- x -}} as above
//
// A comment is treated as {% %}. Without these rules a tag takes what a '-' says alone.
class Lexer {
 public:
  Lexer(const std::string& source, JinjaLayout layout) : source_(source), layout_(layout) {}

  std::vector<Token> Run() {
    for (std::size_t tag; (tag = FindTag()) != std::string::npos;) LexTag(tag);
    AddText(Rest(at_));
    Add(Token::kEnd, source_.size());
    return std::move(tokens_);
  }

 private:
  std::string_view Rest(std::size_t at) const { return std::string_view(source_).substr(at); }
  char Peek(std::size_t at) const { return at < source_.size() ? source_[at] : '\0'; }
  bool trims() const { return layout_ == JinjaLayout::kTrimmed; }
  bool HasSign(std::size_t at) const { return Peek(at) == '-' || Peek(at) == '+'; }
  std::size_t SpaceEnd(std::size_t at) const {
    return source_.size() - StripText(Rest(at), Side::kLeft).size();
  }
  void SkipSpace() { at_ = SpaceEnd(at_); }

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

  void LexTag(std::size_t begin) {
    if (LexRaw(begin)) return;
    const char kind = source_[begin + 1];  // { % or #
    const std::string end = {kind == '{' ? '}' : kind, '}'};
    AddTextBefore(begin, kind);
    at_ = begin + (HasSign(begin + 2) ? 3 : 2);
    if (kind == '#') {
      SkipComment(begin);
    } else {
      Add(Token::kOperator, begin, source_.substr(begin, 2));
      LexInside(begin, end);
    }
    const char sign = HasSign(at_) ? source_[at_++] : '\0';
    if (kind != '#') Add(Token::kOperator, at_, end);
    at_ += 2;
    SkipBehind(sign, /*takes_line_end=*/kind != '{');
  }

  void SkipBehind(char sign, bool takes_line_end) {
    if (sign == '-') {
      SkipSpace();
    } else if (sign != '+' && takes_line_end && trims() && Peek(at_) == '\n') {
      ++at_;
    }
  }

  // {% raw %} {{ this is text }} {% endraw %}. The line end behind {% raw %} is text, too.
  bool LexRaw(std::size_t begin) {
    const std::size_t body = EndOfTag(begin, "raw");
    if (body == 0) return false;
    AddTextBefore(begin, '%');
    at_ = body;
    SkipBehind(source_[body - 3], /*takes_line_end=*/false);
    for (std::size_t tag = at_; (tag = source_.find("{%", tag)) != std::string::npos; ++tag) {
      const std::size_t end = EndOfTag(tag, "endraw");
      if (end == 0) continue;
      AddTextBefore(tag, '%');
      at_ = end;
      SkipBehind(source_[end - 3], /*takes_line_end=*/true);
      return true;
    }
    FailAt(begin, "the block 'raw' has no end 'endraw'");
  }

  // Returns the end of the tag at `begin` when it is {% word %}, with signs or without; otherwise
  // 0. The words raw and endraw are found before tokens are: the text between them need not be well
  // formed, and {% rawhide %} is another tag.
  std::size_t EndOfTag(std::size_t begin, std::string_view word) const {
    if (!Rest(begin).starts_with("{%")) return 0;
    std::size_t at = SpaceEnd(begin + (HasSign(begin + 2) ? 3 : 2));
    if (!Rest(at).starts_with(word)) return 0;
    at = SpaceEnd(at + word.size());
    if (HasSign(at)) ++at;
    return Rest(at).starts_with("%}") ? at + 2 : 0;
  }

  // Adds the text up to a tag of this kind at `begin`.
  void AddTextBefore(std::size_t begin, char kind) {
    std::string_view text = Rest(at_).substr(0, begin - at_);
    const char sign = Peek(begin + 2);
    if (sign == '-') {
      text = StripText(text, Side::kRight);
    } else if (sign != '+' && kind != '{' && trims()) {
      const std::size_t line = text.rfind('\n') + 1;  // 0 without a line end
      const bool starts_line = line > 0 || at_ == 0 || source_[at_ - 1] == '\n';
      if (starts_line && StripText(text.substr(line)).empty()) text = text.substr(0, line);
    }
    AddText(text);
  }

  // Stops at the sign or at "#}".
  void SkipComment(std::size_t begin) {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) FailAt(begin, "the comment has no end '#}}'");
    at_ = end > at_ && HasSign(end - 1) ? end - 1 : end;
  }

  // Adds the tokens of a tag. Stops at the sign or at `end`, which counts only outside of brackets:
  // {{ {'a': {}} }}.
  void LexInside(std::size_t begin, std::string_view end) {
    std::string open;  // the closing partners of the brackets that are open
    for (SkipSpace(); at_ < source_.size(); SkipSpace()) {
      const bool has_sign = Peek(at_) == '-' || (Peek(at_) == '+' && end == "%}");
      if (open.empty() && Rest(at_ + (has_sign ? 1 : 0)).starts_with(end)) return;
      LexToken(open);
    }
    FailAt(begin, "the tag has no end '{}'", end);
  }

  void LexToken(std::string& open) {
    const char c = source_[at_];
    if (IsAsciiDigit(c)) return LexNumber();
    if (c == '"' || c == '\'') return LexString(c);
    const char* const begin = source_.data() + at_;
    const char* end = begin;
    for (const char* next = end; end < source_.data() + source_.size(); end = next) {
      const char32_t letter = NextCharacter(next);
      if (letter != '_' && !IsWordCharacter(letter)) break;
    }
    if (begin == end) return LexOperator(open);
    Add(Token::kName, at_, std::string(begin, end));
    at_ += end - begin;
  }

  void LexOperator(std::string& open) {
    const auto* op = std::find_if(std::begin(kOperators), std::end(kOperators),
                                  [&](std::string_view o) { return Rest(at_).starts_with(o); });
    if (op == std::end(kOperators)) {
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

  // A '_' may separate digits: 1_000.
  void SkipDigits() {
    while (IsAsciiDigit(Peek(at_)) || (Peek(at_) == '_' && IsAsciiDigit(Peek(at_ + 1)))) ++at_;
  }

  // 12, 1.5 or 1e-5; behind a dot only 12, as x.0.1 has two indices. Other forms, such as 0x1F, end
  // as a number and a name, which the parser refuses.
  void LexNumber() {
    const std::size_t begin = at_;
    const bool is_index = begin > 0 && source_[begin - 1] == '.';
    SkipDigits();
    const std::size_t integer_end = at_;
    if (!is_index && Peek(at_) == '.' && IsAsciiDigit(Peek(at_ + 1))) {
      ++at_;
      SkipDigits();
    }
    const std::size_t exponent = at_ + (HasSign(at_ + 1) ? 2 : 1);
    if (!is_index && (Peek(at_) | 32) == 'e' && IsAsciiDigit(Peek(exponent))) {
      at_ = exponent;
      SkipDigits();
    }
    std::string digits = source_.substr(begin, at_ - begin);
    std::erase(digits, '_');
    Add(at_ == integer_end ? Token::kInteger : Token::kFloat, begin, std::move(digits));
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

  // An escape sequence of Python at at_: \n, \x41, \u00e9, \U0001F600, \101 or a backslash at a
  // line end.
  void Unescape(std::string& value) {
    constexpr std::string_view kLetters = "abfnrtv\\'\"";
    constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
    const char c = Peek(at_ + 1);
    if (c == 'x') return UnescapeCode(at_ + 2, 2, 16, value);
    if (c == 'u') return UnescapeCode(at_ + 2, 4, 16, value);
    if (c == 'U') return UnescapeCode(at_ + 2, 8, 16, value);
    const std::size_t octal = Rest(at_ + 1).substr(0, 3).find_first_not_of("01234567");
    if (octal != 0) return UnescapeCode(at_ + 1, std::min<std::size_t>(octal, 3), 8, value);
    if (c == 'N') FailAt(at_, "the escape sequence '\\N' is not supported");
    const std::size_t known = kLetters.find(c);
    if (known != std::string_view::npos) value += kValues[known];
    const bool is_known = known != std::string_view::npos || c == '\n';
    if (!is_known) value += '\\';  // the backslash of an unknown escape stays
    at_ += is_known ? 2 : 1;
  }

  void UnescapeCode(std::size_t begin, std::size_t digits, int base, std::string& value) {
    std::uint32_t code = 0;
    const std::string_view text = Rest(std::min(begin, source_.size())).substr(0, digits);
    const auto result = std::from_chars(text.data(), text.data() + text.size(), code, base);
    const bool is_surrogate = code >= 0xD800 && code < 0xE000;
    if (result.ptr != text.data() + digits || is_surrogate || code > 0x10FFFF) {
      FailAt(at_, "the escape sequence is not a character");
    }
    AppendUtf8(static_cast<char32_t>(code), &value);
    at_ = begin + digits;
  }

  const std::string& source_;
  JinjaLayout layout_;
  std::size_t at_ = 0;
  std::vector<Token> tokens_;
};

}  // namespace

// The syntax tree of a template takes some 70 times its bytes, so these are limited.
std::string NormalizeSource(std::string_view text, JinjaLayout layout) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 22;
  if (text.size() > kMaxBytes) FailAt(0, "the template has more than {} bytes", kMaxBytes);
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
  if (layout == JinjaLayout::kTrimmed && source.ends_with('\n')) source.pop_back();
  return source;
}

std::vector<Token> Tokenize(const std::string& source, JinjaLayout layout) {
  return Lexer(source, layout).Run();
}

}  // namespace qlora::jinja
