// The rules are those of llama.cpp, which splits some texts in another way than the tokenizer.json
// that a file was made from: outside of ASCII it tells letters from marks and digits, but no case.
// tests/interop/gguf_tokens.mjs compares them with llama.cpp itself.
#include "tokenizer/gguf/gguf_pre_tokenizers.h"

#include <algorithm>
#include <array>

#include "tokenizer/split/split_pattern.h"

namespace qlora {
namespace {

enum class Rule {
  kDefault,
  kGpt2,
  kDigitsThenGpt2,
  kLlama3,
  kQwen2,
  kQwen35,
  kMiniCpm5,
  kSeedCoder,
  kTekken,
  kGpt4o,
  kDeepSeek3,
  kDeepSeekCoder,
  kFalcon,
};

struct Row {
  std::string_view name;
  Rule rule;
  bool ignore_merges = false;
  bool adds_bos = false;
  bool has_bos = true;
};

constexpr auto kRows = std::to_array<Row>({
    {"default", Rule::kDefault},
    {"gpt-2", Rule::kGpt2},
    {"phi-2", Rule::kGpt2},
    {"olmo", Rule::kGpt2},
    {"mpt", Rule::kGpt2},
    {"jais", Rule::kGpt2},
    {"exaone4", Rule::kGpt2},
    {"mellum", Rule::kGpt2},
    {"trillion", Rule::kGpt2},
    {"granite-docling", Rule::kGpt2},
    {"gigachat", Rule::kGpt2},
    {"a.x-4.0", Rule::kGpt2},
    {"smollm", Rule::kDigitsThenGpt2},
    {"starcoder", Rule::kDigitsThenGpt2},
    {"refact", Rule::kDigitsThenGpt2},
    {"command-r", Rule::kDigitsThenGpt2},
    {"codeshell", Rule::kDigitsThenGpt2},
    {"exaone", Rule::kDigitsThenGpt2},
    {"minerva-7b", Rule::kDigitsThenGpt2},
    {"llama-bpe", Rule::kLlama3, true, true},
    {"llama3", Rule::kLlama3, true, true},
    {"llama-v3", Rule::kLlama3, true, true},
    {"falcon3", Rule::kLlama3, true, true},
    {"falcon-h1", Rule::kLlama3, true, true},
    {"pixtral", Rule::kLlama3, true, true},
    {"midm-2.0", Rule::kLlama3, true, true},
    {"lfm2", Rule::kLlama3, true, true},
    {"dbrx", Rule::kLlama3},
    {"smaug-bpe", Rule::kLlama3},
    {"glm4", Rule::kLlama3, false, false, false},
    {"chatglm-bpe", Rule::kLlama3, false, false, false},
    {"qwen2", Rule::kQwen2},
    {"deepseek-r1-qwen", Rule::kQwen2},
    {"megrez", Rule::kQwen2},
    {"stablelm2", Rule::kQwen2},
    {"hunyuan", Rule::kQwen2},
    {"solar-open", Rule::kQwen2},
    {"grok-2", Rule::kQwen2},
    {"qwen35", Rule::kQwen35},
    {"minicpm5", Rule::kMiniCpm5, true},
    {"seed-coder", Rule::kSeedCoder},
    {"tekken", Rule::kTekken, true, true},
    {"gpt-4o", Rule::kGpt4o},
    {"llama4", Rule::kGpt4o},
    {"kanana2", Rule::kGpt4o},
    {"minimax-m2", Rule::kGpt4o},
    {"deepseek-v3", Rule::kDeepSeek3},
    {"hunyuan-dense", Rule::kDeepSeek3},
    {"deepseek-coder", Rule::kDeepSeekCoder},
    {"falcon", Rule::kFalcon},
});

// An expression of tokenizer.json, and the name of the rule that splits the same way.
struct TrainedRegex {
  std::string_view regex;
  std::string_view name;
};
constexpr auto kTrained = std::to_array<TrainedRegex>({
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     "llama-bpe"},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     "qwen2"},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     "tekken"},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     "gpt-4o"},
});

// Parts that rules share. (?i: would let the long s count as an s.
constexpr const char* kSuffix = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])";
constexpr const char* kSpaces = R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

// Words with the character before them, digits as `digits` says, and the rest.
std::string WordsAndDigits(std::string_view digits) {
  return std::string(kSuffix) + R"(|[^\r\n\p{L}\p{N}]?\p{L}+|)" + std::string(digits) +
         R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|)" + kSpaces;
}

// As above, but a word ends where a small ASCII letter stands before a capital one.
std::string CasedWords(std::string_view suffix, std::string_view digits) {
  // A letter that is none of a to z, a letter that is none of A to Z.
  const std::string upper = R"((?:(?=\p{L})[^a-z]))";
  const std::string lower = R"((?:(?=\p{L})[^A-Z]))";
  const std::string before = R"([^\r\n\p{L}\p{N}]?)";
  return before + upper + "*" + lower + "+" + std::string(suffix) + "|" + before + upper + "+" +
         lower + "*" + std::string(suffix) + "|" + std::string(digits) +
         R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" + kSpaces;
}

std::vector<std::string> SplitsOf(Rule rule) {
  const std::string gpt2(kGpt2Regex);
  switch (rule) {
    case Rule::kDefault:
      return {R"([\p{P}\$\+<=>\^~\|]+)", gpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"};
    case Rule::kGpt2:
      return {gpt2};
    case Rule::kDigitsThenGpt2:
      return {R"(\p{N})", gpt2};
    case Rule::kLlama3:
      return {WordsAndDigits(R"(\p{N}{1,3})")};
    case Rule::kQwen2:
      return {WordsAndDigits(R"(\p{N})")};
    case Rule::kQwen35:
      return {std::string(kSuffix) +
              R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)" +
              kSpaces};
    case Rule::kMiniCpm5:
      return {R"(\p{N}{1,3})", WordsAndDigits(R"(\p{N}+)")};
    case Rule::kSeedCoder:
      return {std::string(kSuffix) + R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|)" +
              kSpaces};
    case Rule::kTekken:
      return {CasedWords("", R"(\p{N})")};
    case Rule::kGpt4o:
      return {CasedWords(std::string(kSuffix) + "?", R"(\p{N}{1,3})")};
    case Rule::kDeepSeek3:
      // Digits; Han, Hiragana and Katakana; the rest.
      return {R"(\p{N}{1,3})", R"([\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+)",
              R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|)"
              R"([^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)" +
                  std::string(kSpaces)};
    case Rule::kDeepSeekCoder:
      return {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
              // White space within the range does not count.
              R"((?:(?!\s)[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff])+)", R"(\p{N})"};
    case Rule::kFalcon:
      return {R"([\p{P}\$\+<=>\^~\|`]+)", gpt2, "[0-9][0-9][0-9]"};
  }
  return {};
}

}  // namespace

std::optional<GgufPreTokenizer> FindGgufPreTokenizer(std::string_view name) {
  if (name.empty()) name = "default";
  const auto row = std::ranges::find_if(kRows, [&](const Row& r) { return r.name == name; });
  if (row == kRows.end()) return std::nullopt;
  const auto trained = std::ranges::find(kTrained, name, &TrainedRegex::name);
  return GgufPreTokenizer{SplitsOf(row->rule),
                          std::string(trained == kTrained.end() ? "" : trained->regex),
                          row->ignore_merges, row->adds_bos, row->has_bos};
}

std::string_view GgufPreTokenizerOfSplits(const std::vector<std::string>& splits,
                                          bool ignore_merges) {
  for (const Row& row : kRows) {
    if (row.ignore_merges == ignore_merges && SplitsOf(row.rule) == splits) return row.name;
  }
  return "";
}

std::string GgufPreTokenizerNames() {
  std::string names;
  for (const Row& row : kRows) {
    if (!names.empty()) names += ", ";
    names += row.name;
  }
  return names;
}

}  // namespace qlora
