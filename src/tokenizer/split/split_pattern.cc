// The simple patterns, and regular expressions on PCRE2.
#include "tokenizer/split/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "base/check.h"
#include "tokenizer/split/known_pattern.h"
#include "tokenizer/split/translate_regex.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

class LiteralPattern final : public SplitPattern {
 public:
  explicit LiteralPattern(std::string text) : text_(std::move(text)) {}

  void ForEachMatch(std::string_view text, const MatchSink& sink) const override {
    for (std::size_t at = 0; (at = text.find(text_, at)) != std::string_view::npos;) {
      sink(at, at + text_.size());
      // Matches do not overlap: "aa" matches "aaa" once.
      at += text_.size();
    }
  }

 private:
  std::string text_;
};

class CharacterPattern final : public SplitPattern {
 public:
  explicit CharacterPattern(bool (*is_match)(char32_t)) : is_match_(is_match) {}

  void ForEachMatch(std::string_view text, const MatchSink& sink) const override {
    const char* const begin = text.data();
    for (const char* p = begin; p < begin + text.size();) {
      const char* const start = p;
      if (is_match_(NextCharacter(p))) sink(start - begin, p - begin);
    }
  }

 private:
  bool (*is_match_)(char32_t);
};

// Deleter of PCRE2's objects.
template <auto free_function>
struct PcreFree {
  template <typename T>
  void operator()(T* p) const {
    free_function(p);
  }
};

// Characters are UTF-8, classes are Unicode's, and ^ and $ match at lines, as in Oniguruma.
class PcrePattern final : public SplitPattern {
 public:
  PcrePattern(const std::string& regex, const std::string& where) : regex_(regex), where_(where) {
    const std::string translated = TranslateRegex(regex, where);
    const std::unique_ptr<pcre2_compile_context, PcreFree<pcre2_compile_context_free>> context(
        pcre2_compile_context_create(nullptr));
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    int error = 0;
    PCRE2_SIZE offset = 0;
    // Oniguruma (Ruby's syntax) lets ^ and $ match at every line and knows \n alone as the end of
    // one.
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset,
                              context.get()));
    if (code_ == nullptr) {
      ThrowInvalidInput("{}: cannot compile the regular expression '{}': {}", where, regex,
                        ErrorText(error));
    }
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // without JIT, pcre2_match interprets
  }

  // An empty match that touches the match before it does not count: in "baac", a* matches before b,
  // "aa" and at the end.
  void ForEachMatch(std::string_view text, const MatchSink& sink) const override {
    const std::unique_ptr<pcre2_match_data, PcreFree<pcre2_match_data_free>> data(
        pcre2_match_data_create(1, nullptr));
    const std::unique_ptr<pcre2_match_context, PcreFree<pcre2_match_context_free>> context(
        pcre2_match_context_create(nullptr));
    pcre2_set_heap_limit(context.get(), kHeapLimitKiB);
    PCRE2_SIZE from = 0;
    PCRE2_SIZE last_end = PCRE2_UNSET;
    while (from <= text.size()) {
      if (!Match(text, from, data.get(), context.get())) return;
      const PCRE2_SIZE* const place = pcre2_get_ovector_pointer(data.get());
      if (place[0] == place[1] && place[1] == last_end) {
        // The empty match at the end of the match before is skipped by a whole character, since no
        // match may begin within one. Behind the last character, 1 ends the loop.
        from += from < text.size() ? Utf8Length(text[from]) : 1;
        continue;
      }
      from = last_end = place[1];
      sink(place[0], place[1]);
    }
  }

 private:
  // The memory that one match may use for backtracking.
  static constexpr std::uint32_t kHeapLimitKiB = 1 << 20;

  static std::string ErrorText(int error) {
    PCRE2_UCHAR buffer[256];
    pcre2_get_error_message(error, buffer, sizeof(buffer));
    return reinterpret_cast<const char*>(buffer);
  }

  // False when nothing matches from `from` on. PCRE2 limits the backtracking of an expression that
  // would take exponential time, which is an error here.
  bool Match(std::string_view text, PCRE2_SIZE from, pcre2_match_data* data,
             pcre2_match_context* context) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    // Encode has repaired the text (ValidUtf8); checking it again for each match would take
    // quadratic time.
    int result =
        pcre2_match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK, data, context);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter's stack is on the heap
      result = pcre2_match(code_.get(), subject, text.size(), from,
                           PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context);
    }
    if (result == PCRE2_ERROR_NOMATCH) return false;
    if (result < 0) {
      ThrowInvalidInput("{}: the regular expression '{}' failed on a text of {} bytes: {}", where_,
                        regex_, text.size(), ErrorText(result));
    }
    return true;
  }

  std::string regex_;
  std::string where_;
  std::unique_ptr<pcre2_code, PcreFree<pcre2_code_free>> code_;
};

}  // namespace

std::unique_ptr<SplitPattern> ParsePattern(const JsonValue& pattern) {
  if (pattern.Has("String")) {
    std::string text = pattern["String"].String();
    if (text.empty()) pattern["String"].Fail("a text that is not empty");
    return std::make_unique<LiteralPattern>(std::move(text));
  }
  if (pattern.Has("Regex")) {
    return MakeRegexPattern(pattern["Regex"].String(), pattern["Regex"].where());
  }
  pattern.Fail("{\"String\": ...} or {\"Regex\": ...}");
}

std::unique_ptr<SplitPattern> MakeCharacterPattern(bool (*is_match)(char32_t)) {
  return std::make_unique<CharacterPattern>(is_match);
}

std::unique_ptr<SplitPattern> MakePcrePattern(const std::string& regex, const std::string& where) {
  return std::make_unique<PcrePattern>(regex, where);
}

std::unique_ptr<SplitPattern> MakeRegexPattern(const std::string& regex, const std::string& where) {
  // The usual expressions have scanners without a regex engine, which are faster.
  if (auto known = MakeKnownPattern(regex)) return known;
  return MakePcrePattern(regex, where);
}

}  // namespace qlora
