#include "export/gguf/gguf_pre_names.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/check.h"
#include "base/text.h"
#include "io/json.h"
#include "tokenizer/gguf/gguf_pre_tokenizers.h"
#include "tokenizer/gguf/gguf_tokenizer_json.h"

namespace qlora {
namespace {

constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Another spelling of Llama 3's: white space up to the last line end ends in one or in several.
constexpr const char* kCl100k =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr const char* kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kMiniCpm5 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDigits = R"(\p{N})";
constexpr const char* kThreeDigits = R"(\p{N}{1,3})";
constexpr const char* kHanAndKana = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
constexpr const char* kDeepSeek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kPunctuation = "Punctuation";  // a step that is no expression

// The steps of a pre-tokenizer of tokenizer.json, and the rule of the same splits. Letter by
// letter: two expressions that look alike may split digits in another way.
struct PreRule {
  std::vector<std::string> steps;
  const char* name;
  bool ignore_merges = false;  // a word that is a token is that token
  const char* note = "";
};

// The expression that models with this name of llama.cpp were trained with.
std::string Trained(std::string_view name) { return FindGgufPreTokenizer(name)->trained; }

const std::vector<PreRule>& PreRules() {
  static const std::vector<PreRule> kPreRules = {
      {{}, "gpt-2"},
      {{kGpt2}, "gpt-2"},
      {{kDigits, kGpt2}, "smollm"},
      {{Trained("llama-bpe")}, "llama-bpe", true},
      {{Trained("llama-bpe")}, "dbrx"},
      {{kCl100k}, "llama-bpe", true},
      {{kCl100k}, "dbrx"},
      {{Trained("qwen2")}, "qwen2"},
      {{kQwen35}, "qwen35"},
      {{kSeedCoder}, "seed-coder"},
      {{Trained("tekken")}, "tekken", true},
      {{Trained("gpt-4o")}, "gpt-4o"},
      {{kThreeDigits, kHanAndKana, kDeepSeek3}, "deepseek-v3"},
      {{kThreeDigits, kMiniCpm5}, "minicpm5", true},
      {{kPunctuation, kGpt2, kDigits, "[0-9][0-9][0-9]"},
       "falcon3",
       true,
       "llama.cpp splits digits and punctuation of this model in another way than its "
       "tokenizer.json does"},
  };
  return kPreRules;
}

// Appends the splits of a step: an expression that isolates its matches, or the name of the step.
// Line ends in expressions are written as escapes.
void AppendSplits(const OrderedJson& step, std::vector<std::string>& splits) {
  if (!step.is_object()) return;
  const std::string type = step.value("type", "");
  const auto pattern = step.find("pattern");
  if (type == "Sequence") {
    for (const OrderedJson& inner : step.at("pretokenizers")) AppendSplits(inner, splits);
  } else if (type == "ByteLevel") {
    if (step.value("use_regex", true)) splits.emplace_back(kGpt2);
  } else if (type == "Digits" && step.value("individual_digits", false)) {
    splits.emplace_back(kDigits);
  } else if (type == "Punctuation" && step.value("behavior", "") == "Contiguous") {
    splits.emplace_back(kPunctuation);
  } else if (type == "Split" && pattern != step.end() && pattern->contains("Regex")) {
    const std::string behavior = step.value("behavior", "");
    const bool keeps_matches = behavior == "Removed" && step.value("invert", false);
    const bool isolates = behavior == "Isolated" || keeps_matches;
    const std::string regex = (*pattern)["Regex"].get<std::string>();
    splits.push_back(isolates ? ReplaceAll(ReplaceAll(regex, "\r", "\\r"), "\n", "\\n") : type);
  } else {
    splits.push_back(type);
  }
}

// Of a checkpoint that was made of a GGUF file: the name of the rule that was written into it; "".
std::string_view NameOfWrittenRule(const TokenizerSpec& spec) {
  const Json json = ParseJson(spec.pre_tokenizer, "pre_tokenizer");
  std::vector<std::string> splits;
  if (!json.is_object() || !json.contains("pretokenizers")) return "";
  for (const Json& step : json.at("pretokenizers")) {
    if (!step.contains("pattern") || !step.at("pattern").contains("Regex")) continue;
    splits.push_back(step.at("pattern").at("Regex"));
  }
  if (ByteLevelPreTokenizer(splits) != json) return "";
  return GgufPreTokenizerOfSplits(splits, spec.ignore_merges);
}

}  // namespace

std::string GgufPreName(const TokenizerSpec& spec, std::vector<std::string>& notes) {
  if (!spec.gguf_pre.empty()) return spec.gguf_pre;  // of a GGUF file
  std::vector<std::string> splits;
  AppendSplits(ParseOrderedJson(spec.pre_tokenizer, "pre_tokenizer"), splits);
  const PreRule* found = nullptr;
  for (const PreRule& rule : PreRules()) {
    if (rule.steps != splits) continue;
    if (found == nullptr || rule.ignore_merges == spec.ignore_merges) found = &rule;
  }
  if (found == nullptr) {
    if (const auto written = NameOfWrittenRule(spec); !written.empty()) return std::string(written);
    ThrowInvalidInput(
        "GGUF has no name for the pre-tokenizer of this model, so llama.cpp would split text in "
        "another way: {}",
        spec.pre_tokenizer);
  }
  if (found->note[0] != '\0') notes.emplace_back(found->note);
  if (found->ignore_merges != spec.ignore_merges) {
    notes.push_back(fmt::format(
        "with tokenizer.ggml.pre '{}' llama.cpp {} words that are tokens as they are, unlike the "
        "tokenizer.json: a word that its merges do not make may get other ids",
        found->name, found->ignore_merges ? "takes" : "does not take"));
  }
  return found->name;
}

}  // namespace qlora
