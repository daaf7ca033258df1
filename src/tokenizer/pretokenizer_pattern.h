// What pre-tokenizers split at: regular expressions, fixed texts, kinds of characters.
#ifndef QLORA_TOKENIZER_PRETOKENIZER_PATTERN_H_
#define QLORA_TOKENIZER_PRETOKENIZER_PATTERN_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace qlora {

class SplitPattern {
 public:
  using MatchSink = std::function<void(std::size_t begin, std::size_t end)>;

  virtual ~SplitPattern() = default;
  // Calls sink for the matches in `text` (valid UTF-8), left to right, without overlap.
  virtual void ForEachMatch(std::string_view text, const MatchSink& sink) const = 0;
};

// Every occurrence of `text`, which is not empty.
std::unique_ptr<SplitPattern> MakeLiteralPattern(std::string text);

// Every single character of a kind.
std::unique_ptr<SplitPattern> MakeCharacterPattern(bool (*is_match)(char32_t));

// Runs of word characters, and runs of what is neither word nor space: \w+|[^\w\s]+
std::unique_ptr<SplitPattern> MakeWordPattern();

// A regular expression as Oniguruma (Hugging Face's engine) reads it. The expressions of GPT-2,
// Llama 3 and Qwen 2 have matchers of their own; others run on PCRE2.
// Errors: InvalidInput, naming `where`, when it uses what the two engines read differently.
std::unique_ptr<SplitPattern> MakeRegexPattern(const std::string& regex, const std::string& where);

// The split expression of GPT-2 (encoder.py), which the ByteLevel pre-tokenizer applies.
inline constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The regular expression in PCRE2's language (with PCRE2_UTF, PCRE2_UCP, PCRE2_MULTILINE).
// Errors as MakeRegexPattern.
std::string TranslateRegex(std::string_view regex, const std::string& where);

// The matcher of one of the known expressions, or null.
std::unique_ptr<SplitPattern> MakeKnownPattern(std::string_view regex);
// The same expression on PCRE2, for comparison.
std::unique_ptr<SplitPattern> MakePcrePattern(const std::string& regex, const std::string& where);

}  // namespace qlora

#endif  // QLORA_TOKENIZER_PRETOKENIZER_PATTERN_H_
