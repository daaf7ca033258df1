// From Oniguruma's regular expressions to PCRE2's. Only expressions that both engines read alike,
// or that can be rewritten so, pass: a wrong split would be a silently wrong tokenizer.
// The rewritten ones:
//
//     \s         to the characters of White_Space: PCRE2's \s has U+180E in addition
//     \p{L}      to \p{L} and the letters of Unicode 15 and 16: PCRE2 10.42 knows Unicode 14
//     x{2,3}+    to (?:x{2,3})+: PCRE2 would read a possessive quantifier
//     x{,3}      to x{0,3}
//     \v, \uHHHH to \x{b}, \x{HHHH}
#include "tokenizer/split/translate_regex.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "unicode/unicode.h"
#include "unicode/unicode_tables.h"

namespace qlora {
namespace {

// The characters of White_Space, for a class.
constexpr std::string_view kSpaceRanges =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// The general categories, in the order of utf8proc_category_t.
constexpr std::array<std::string_view, 30> kCategoryNames = {
    "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
    "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};

// Far above real expressions, which have up to 1 KB and three levels.
constexpr std::int64_t kMaxRegexBytes = 1 << 14;
constexpr int kMaxGroupDepth = 50;

// \p{name}, for a class, with the characters that Unicode has assigned since PCRE2's tables.
std::string Property(std::string_view name) {
  std::string items = fmt::format("\\p{{{}}}", name);
  for (const CategoryRange& range : kLaterCategories) {
    if (kCategoryNames[range.category].starts_with(name)) {
      items += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", std::uint32_t{range.first},
                           std::uint32_t{range.last});
    }
  }
  return items;
}

// A parser by recursive descent that writes the translation while it reads:
//
//     Run      Element*
//     Element  character or Escape or Class, Quantifier?
//              or Group: ( Element* ) Quantifier?
class RegexTranslator {
 public:
  RegexTranslator(std::string_view regex, const std::string& where)
      : regex_(regex), where_(where) {}

  std::string Run() {
    if (std::ssize(regex_) > kMaxRegexBytes) {
      ThrowInvalidInput("{}: the regular expression has {} bytes; expected at most {}", where_,
                        regex_.size(), kMaxRegexBytes);
    }
    while (at_ < regex_.size()) Element();
    return std::move(out_);
  }

 private:
  [[noreturn]] void Unsupported(std::string_view what) const {
    ThrowInvalidInput(
        "{}: the regular expression '{}' uses {} at byte {}; expected groups, alternatives, "
        "classes, quantifiers, look-around and \\s \\d \\p{{general category}}, or one of the "
        "expressions of GPT-2, Llama 3 and Qwen 2",
        where_, regex_, what, at_);
  }

  char Peek(std::size_t ahead = 0) const {
    return at_ + ahead < regex_.size() ? regex_[at_ + ahead] : '\0';
  }
  bool Accept(std::string_view text) {
    if (regex_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }

  void Element() {
    const char c = Peek();
    const std::size_t start = out_.size();
    if (c == '(') {
      Group();
      return;
    }
    if (c == '*' || c == '+' || c == '?' || c == '{') Unsupported("a quantifier without operand");
    if (c == '\\') {
      out_ += Escape(false);
    } else if (c == '[') {
      Class();
    } else {
      CheckCaseless(c);
      out_ += regex_[at_++];
      while (at_ < regex_.size() && ContinuesCharacter(regex_[at_])) out_ += regex_[at_++];
      // A quantifier of these is an error or has no meaning; the next Element refuses it.
      if (c == '|' || c == '^' || c == '$') return;
    }
    Quantifier(start);
  }

  void Group() {
    static constexpr std::array<std::string_view, 7> kOpenings = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
    const std::size_t start = out_.size();
    std::string_view opening = "(";
    for (const std::string_view o : kOpenings) {
      if (regex_.substr(at_, o.size()) == o) opening = o;
    }
    if (opening == "(" && Peek(1) == '?') Unsupported("this kind of group");
    at_ += opening.size();
    out_ += opening;
    const bool outer_caseless = caseless_;
    caseless_ |= opening == "(?i:";
    if (++depth_ > kMaxGroupDepth) Unsupported("groups nested too deeply");
    while (Peek() != ')') {
      if (at_ >= regex_.size()) Unsupported("an open group");
      Element();
    }
    caseless_ = outer_caseless;
    --depth_;
    ++at_;
    out_ += ')';
    Quantifier(start);
  }

  // An interval, *, + or ? behind the element that starts at out_[start].
  void Quantifier(std::size_t start) {
    const char c = Peek();
    if (c == '*' || c == '+' || c == '?') {
      out_ += c;
      ++at_;
      Suffix();
    } else if (c == '{') {
      const std::size_t close = regex_.find('}', at_);
      const std::string_view inside =
          close == std::string_view::npos ? "" : regex_.substr(at_ + 1, close - at_ - 1);
      const std::size_t comma = inside.find(',');
      const std::string_view least = inside.substr(0, comma);
      if (inside.find_first_not_of("0123456789,") != std::string_view::npos || inside.empty() ||
          inside == "," || inside.find(',', comma + 1) < inside.size()) {
        Unsupported("this interval");
      }
      at_ = close + 1;
      out_ += fmt::format("{{{}{}}}", least.empty() ? "0" : "", inside);
      if (Peek() == '+') {  // Oniguruma repeats the repetition; PCRE2 would make it possessive
        ++at_;
        out_.insert(start, "(?:");
        out_ += ")+";
        Suffix();
      } else if (Peek() == '?') {
        if (comma == std::string_view::npos) Unsupported("{n}?");
        ++at_;
        out_ += '?';
      }
    } else {
      return;
    }
    if (const char next = Peek(); next == '*' || next == '+' || next == '?' || next == '{') {
      Unsupported("a quantifier of a quantifier");
    }
  }

  // Lazy or possessive.
  void Suffix() {
    if (Peek() == '?' || Peek() == '+') out_ += regex_[at_++];
  }

  // Letters of another case that are several characters exist in Oniguruma only.
  void CheckCaseless(char c) const {
    if (!caseless_) return;
    if (static_cast<unsigned char>(c) >= 0x80) Unsupported("a non-ASCII character under (?i:");
    const std::string_view pair = regex_.substr(at_, 2);
    for (const std::string_view folded : {"ss", "st", "ff", "fi", "fl"}) {
      if (pair == folded) Unsupported("letters with a ligature under (?i:");
    }
    // A capital letter in "St" would escape the comparison with the pairs above.
    if (c >= 'A' && c <= 'Z') Unsupported("a capital letter under (?i:");
  }

  void Class() {
    out_ += '[';
    ++at_;
    if (Accept("^")) out_ += '^';
    if (Peek() == ']') Unsupported("']' as the first character of a class");
    while (Peek() != ']') {
      if (at_ >= regex_.size()) Unsupported("an open class");
      if (Peek() == '[') Unsupported("'[' within a class");
      if (Peek() == '&' && Peek(1) == '&') Unsupported("&& within a class");
      if (Peek() == '\\') {
        out_ += Escape(true);
      } else {
        CheckCaseless(Peek());
        out_ += regex_[at_++];
      }
    }
    ++at_;
    out_ += ']';
  }

  // The translation of the escape at at_, for use within a class or alone.
  std::string Escape(bool in_class) {
    const char c = Peek(1);
    const auto alone = [&](std::string_view items, bool negated) {
      return in_class ? std::string(items) : fmt::format("[{}{}]", negated ? "^" : "", items);
    };
    switch (c) {
      case 's':
        at_ += 2;
        return alone(kSpaceRanges, false);
      case 'S':
        // Within a class, the characters in which White_Space and PCRE2's \s differ are put back.
        at_ += 2;
        return in_class ? R"(\S\x{180e})" : alone(kSpaceRanges, true);
      case 'd':
        at_ += 2;
        return alone(Property("Nd"), false);
      case 'p':
      case 'P':
        if (in_class && c == 'P') Unsupported("this property");
        return alone(Property(PropertyName()), c == 'P');
      case 'x':
      case 'u':
        return CharacterCode(c);
      case 'v':
        at_ += 2;
        return R"(\x{b})";
      case 'n':
      case 'r':
      case 't':
      case 'f':
        at_ += 2;
        return {'\\', c};
      case 'A':
      case 'z':
        if (in_class) break;
        at_ += 2;
        return {'\\', c};
      default:
        if (!IsAsciiPunctuation(c)) break;
        at_ += 2;
        return {'\\', c};
    }
    Unsupported("this escape");
  }

  static bool IsAsciiPunctuation(char c) {
    return c > ' ' && c < 127 && (ClassOf(static_cast<char32_t>(c)) & (kLetter | kNumber)) == 0;
  }

  // The name in \p{name} at at_: a general category or the first letter of several, but not C,
  // where the engines count unassigned characters differently.
  std::string_view PropertyName() {
    const std::size_t close = regex_.find('}', at_);
    if (Peek(2) != '{' || close == std::string_view::npos || caseless_) {
      Unsupported("this property");
    }
    const std::string_view name = regex_.substr(at_ + 3, close - at_ - 3);
    const bool known = std::any_of(kCategoryNames.begin(), kCategoryNames.end(),
                                   [&](std::string_view n) { return n.starts_with(name); });
    if (name.empty() || name[0] == 'C' || !known) Unsupported("this property");
    at_ = close + 1;
    return name;
  }

  // \xHH (ASCII only: above, Oniguruma reads a byte), \x{H...} or \uHHHH at at_.
  std::string CharacterCode(char kind) {
    const bool braces = kind == 'x' && Peek(2) == '{';
    const std::size_t first = at_ + (braces ? 3 : 2);
    const std::size_t close = braces ? regex_.find('}', at_) : first + (kind == 'x' ? 2 : 4);
    if (close > regex_.size()) Unsupported("this character code");
    const std::string_view digits = regex_.substr(first, close - first);
    if (digits.empty() || digits.size() > 6 || caseless_ ||
        digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos ||
        (kind == 'x' && !braces && digits[0] > '7')) {
      Unsupported("this character code");
    }
    at_ = close + (braces ? 1 : 0);
    return fmt::format("\\x{{{}}}", digits);
  }

  std::string_view regex_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::string out_;
  bool caseless_ = false;
  int depth_ = 0;
};

}  // namespace

std::string TranslateRegex(std::string_view regex, const std::string& where) {
  return RegexTranslator(regex, where).Run();
}

}  // namespace qlora
