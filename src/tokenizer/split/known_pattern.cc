// Matchers for the split expressions of GPT-2, Llama 3 and Qwen 2, several times as fast as a
// regular expression engine. The alternatives of an expression are tried in order at each place;
// together they match any character, so that matches cover the text without gaps:
//
//     "I'll pay 1234 !!\n"    GPT-2    |I|'ll| pay| 1234| !!|\n|
//                             Llama 3  |I|'ll| pay| |123|4| !!\n|
#include "tokenizer/split/known_pattern.h"

#include <memory>
#include <string_view>

#include "unicode/unicode.h"

namespace qlora {
namespace {

constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// As GGUF's readers spell them, where the long s is no s.
constexpr std::string_view kLlama3Ascii =
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Ascii =
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// A place in the text.
struct Cursor {
  const char* p;
  const char* end;

  unsigned ClassHere() const {  // 0 at the end
    if (p == end) return 0;
    const char* next = p;
    return ClassOf(NextCharacter(next));
  }
  void Step() { p += Utf8Length(*p); }

  // Skips characters that have one of the classes in `any`.
  void SkipAny(unsigned any) {
    while (p < end) {
      const char* next = p;
      if ((ClassOf(NextCharacter(next)) & any) == 0) return;
      p = next;
    }
  }
  // Skips characters that have none of the classes in `none`.
  void SkipNone(unsigned none) {
    while (p < end) {
      const char* next = p;
      if ((ClassOf(NextCharacter(next)) & none) != 0) return;
      p = next;
    }
  }
  bool IsOther() const { return p < end && (ClassHere() & (kSpace | kLetter | kNumber)) == 0; }
};

char LowerAscii(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

// Which letters count as those of a contraction.
enum class Letters {
  kSmall,
  kAscii,    // in both cases
  kUnicode,  // and U+017F, the long s, which is an s in another case
};

// The end of the English contraction at p ('s 't 're 've 'm 'll 'd), or null.
const char* Contraction(const char* p, const char* end, Letters letters) {
  if (*p != '\'' || end - p < 2) return nullptr;
  const auto letter = [&](int i) { return letters == Letters::kSmall ? p[i] : LowerAscii(p[i]); };
  switch (letter(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return p + 2;
    case 'r':
    case 'v':
      return end - p >= 3 && letter(2) == 'e' ? p + 3 : nullptr;
    case 'l':
      return end - p >= 3 && letter(2) == 'l' ? p + 3 : nullptr;
    case '\xC5':  // the long s
      return letters == Letters::kUnicode && end - p >= 3 && p[2] == '\xBF' ? p + 3 : nullptr;
    default:
      return nullptr;
  }
}

// The end of \s*[\r\n]+ (with line_ends) | \s+(?!\S) | \s+ at a space. The second alternative
// leaves the last space of a run to the word behind it.
const char* SpaceRun(const char* p, const char* end, bool line_ends) {
  Cursor run = {p, end};
  const char* after_line_end = nullptr;
  const char* last = p;
  while (run.p < end) {
    const unsigned c = run.ClassHere();
    if ((c & kSpace) == 0) break;
    last = run.p;
    run.Step();
    if (line_ends && (c & kLineEnd) != 0) after_line_end = run.p;
  }
  if (after_line_end != nullptr) return after_line_end;
  return run.p == end || last == p ? run.p : last;
}

struct Gpt2Rule {
  // The end of the match at p < end.
  const char* Next(const char* p, const char* end) const {
    if (const char* stop = Contraction(p, end, Letters::kSmall)) return stop;
    Cursor at = {p, end};
    if (*p == ' ') at.Step();
    const unsigned c = at.ClassHere();
    if (at.p == end || (c & kSpace) != 0) return SpaceRun(p, end, false);
    if ((c & kLetter) != 0) {  //  ?\p{L}+
      at.SkipAny(kLetter);
    } else if ((c & kNumber) != 0) {  //  ?\p{N}+
      at.SkipAny(kNumber);
    } else {  //  ?[^\s\p{L}\p{N}]+
      at.SkipNone(kSpace | kLetter | kNumber);
    }
    return at.p;
  }
};

struct Llama3Rule {
  int max_digits;  // 3, or 1 for Qwen 2
  Letters letters = Letters::kUnicode;

  const char* Next(const char* p, const char* end) const {
    if (const char* stop = Contraction(p, end, letters)) return stop;
    Cursor at = {p, end};
    const unsigned first = at.ClassHere();
    at.Step();
    // [^\r\n\p{L}\p{N}]?\p{L}+
    if ((first & kLetter) != 0 ||
        ((first & (kLineEnd | kNumber)) == 0 && (at.ClassHere() & kLetter) != 0)) {
      at.SkipAny(kLetter);
      return at.p;
    }
    // \p{N}{1,max_digits}
    if ((first & kNumber) != 0) {
      for (int i = 1; i < max_digits && (at.ClassHere() & kNumber) != 0; ++i) at.Step();
      return at.p;
    }
    //  ?[^\s\p{L}\p{N}]+[\r\n]*
    if ((first & kSpace) == 0 || (*p == ' ' && at.IsOther())) {
      at.SkipNone(kSpace | kLetter | kNumber);
      at.SkipAny(kLineEnd);
      return at.p;
    }
    return SpaceRun(p, end, true);
  }
};

template <typename Rule>
class KnownPattern final : public SplitPattern {
 public:
  explicit KnownPattern(Rule rule) : rule_(rule) {}

  void ForEachMatch(std::string_view text, const MatchSink& sink) const override {
    const char* const begin = text.data();
    const char* const end = begin + text.size();
    for (const char* p = begin; p < end;) {
      const char* const stop = rule_.Next(p, end);
      sink(p - begin, stop - begin);
      p = stop;
    }
  }

 private:
  Rule rule_;
};

}  // namespace

std::unique_ptr<SplitPattern> MakeKnownPattern(std::string_view regex) {
  if (regex == kGpt2Regex) return std::make_unique<KnownPattern<Gpt2Rule>>(Gpt2Rule{});
  if (regex == kLlama3Regex) return std::make_unique<KnownPattern<Llama3Rule>>(Llama3Rule{3});
  if (regex == kQwen2Regex) return std::make_unique<KnownPattern<Llama3Rule>>(Llama3Rule{1});
  if (regex == kLlama3Ascii) {
    return std::make_unique<KnownPattern<Llama3Rule>>(Llama3Rule{3, Letters::kAscii});
  }
  if (regex == kQwen2Ascii) {
    return std::make_unique<KnownPattern<Llama3Rule>>(Llama3Rule{1, Letters::kAscii});
  }
  return nullptr;
}

}  // namespace qlora
