// Patterns that pre-tokenizers split at and Replace replaces: fixed texts, kinds of characters,
// regular expressions.
#ifndef QLORA_TOKENIZER_SPLIT_SPLIT_PATTERN_H_
#define QLORA_TOKENIZER_SPLIT_SPLIT_PATTERN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "tokenizer/json_value.h"

namespace qlora {

class SplitPattern {
 public:
  using MatchSink = std::function<void(std::int64_t begin, std::int64_t end)>;

  virtual ~SplitPattern() = default;
  // Calls sink for the matches in `text` (valid UTF-8), left to right, without overlap.
  virtual void ForEachMatch(std::string_view text, const MatchSink& sink) const = 0;
};

// {"String": text, not empty} or {"Regex": regular expression}. Errors: InvalidInput for others.
std::unique_ptr<SplitPattern> ParsePattern(const JsonValue& pattern);

// Every single character of a kind.
std::unique_ptr<SplitPattern> MakeCharacterPattern(bool (*is_match)(char32_t));

// A regular expression as Oniguruma (Hugging Face's engine) reads it. The expressions of GPT-2,
// Llama 3 and Qwen 2 have matchers written by hand; others run on PCRE2.
// Errors: InvalidInput, naming `where`, when the two engines read a part of it differently.
std::unique_ptr<SplitPattern> MakeRegexPattern(const std::string& regex, const std::string& where);

// The split expression of GPT-2 (encoder.py), which the ByteLevel pre-tokenizer applies.
inline constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// A regular expression on PCRE2 always, for comparison.
std::unique_ptr<SplitPattern> MakePcrePattern(const std::string& regex, const std::string& where);

}  // namespace qlora

#endif  // QLORA_TOKENIZER_SPLIT_SPLIT_PATTERN_H_
