#include "tokenizer/split/split_pattern.h"

#include <gmock/gmock.h>

#include <vector>

#include "qlora/error.h"
#include "tokenizer/split/known_pattern.h"
#include "tokenizer/split/pre_tokenizer.h"
#include "tokenizer/tokenizer_test_util.h"

namespace qlora {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using Words = std::vector<std::string>;

Words Matches(const SplitPattern& pattern, const std::string& text) {
  Words words;
  pattern.ForEachMatch(text, [&](std::int64_t begin, std::int64_t end) {
    words.push_back(text.substr(begin, end - begin));
  });
  return words;
}

Words PcreMatches(const std::string& regex, const std::string& text) {
  return Matches(*MakePcrePattern(regex, "test"), text);
}

constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

TEST(SplitPattern, KnownExpressionsMatchAsTheirRegexDoes) {
  for (const std::string& regex :
       {std::string(kGpt2Regex), std::string(kLlama3), std::string(kQwen2)}) {
    const auto known = MakeKnownPattern(regex);
    ASSERT_NE(known, nullptr) << regex;
    const auto pcre = MakePcrePattern(regex, "test");
    for (std::uint64_t seed = 0; seed < 3000; ++seed) {
      const std::string text = RandomText(seed, 1 + static_cast<int>(seed % 12));
      ASSERT_EQ(Matches(*known, text), Matches(*pcre, text)) << regex << "\n" << text;
    }
    EXPECT_THAT(Matches(*known, ""), ElementsAre());
  }
  EXPECT_EQ(MakeKnownPattern(R"(\p{L}+)"), nullptr);
}

// Expected values: Oniguruma, through Hugging Face tokenizers.
TEST(SplitPattern, ReadsRegularExpressionsAsOniguruma) {
  EXPECT_THAT(PcreMatches("(?i:'s|'t)", "a'\u017f b'S"), ElementsAre("'\u017f", "'S"));
  EXPECT_THAT(PcreMatches(R"(\p{N}{1,3}+)", "1234567"), ElementsAre("1234567"));
  EXPECT_THAT(PcreMatches(R"(\s+$)", "a  \nb  "), ElementsAre("  ", "  "));
  EXPECT_THAT(PcreMatches("^a", "a\na"), ElementsAre("a", "a"));
  EXPECT_THAT(PcreMatches("a.b", "a\nb a b"), ElementsAre("a b"));
  EXPECT_THAT(PcreMatches(R"(\s)", "\u180e\u0085"), ElementsAre("\u0085"));
  EXPECT_THAT(PcreMatches("[^\\S\\n]", "\u180e \n"), ElementsAre(" "));
  EXPECT_THAT(PcreMatches(R"(\p{L}+)", "a\U000105C0b1"),
              ElementsAre("a\U000105C0b"));  // Unicode 16
  EXPECT_THAT(PcreMatches(R"(\P{L})", "a\U000105C0b1"), ElementsAre("1"));
  EXPECT_THAT(PcreMatches("x{,2}y", "xxxy"), ElementsAre("xxy"));
  EXPECT_THAT(PcreMatches("\\u00e9|\\x41|\\v",
                          "\u00e9"
                          "A\v\n"),
              ElementsAre("\u00e9", "A", "\v"));
  EXPECT_THAT(PcreMatches("(?<=a)b|(?>a+)c", "abaac"), ElementsAre("b", "aac"));
}

TEST(SplitPattern, EmptyMatchesDoNotTouchTheMatchBefore) {
  EXPECT_THAT(PcreMatches("a*", "baac"), ElementsAre("", "aa", ""));
}

TEST(SplitPattern, LongRunsNeedNoStack) {
  const std::string text(300000, '1');
  EXPECT_THAT(PcreMatches("(?:1|2)+", text), ElementsAre(text));
}

TEST(SplitPattern, RejectsWhatTheEnginesReadDifferently) {
  for (const char* regex : {R"(\w+)",     R"(\h)",       R"(\bx)",
                            "[a[b]]",     "[[:alpha:]]", "[a-z&&[^c]]",
                            R"(\p{Han})", "(?i)a",       "(?<name>a)",
                            "(?i:ss)",    "(?i:\u00e9)", R"((?i:\p{L}))",
                            R"([\P{L}])", "a{2}?",       "a**",
                            "*a",         "a{x}",        "(a",
                            "[a",         R"(\p{L)",     R"(\x{110000000})",
                            "\\",         R"(\G)",       R"(\1)",
                            "[]a]"}) {
    try {
      MakeRegexPattern(regex, "tokenizer.json: pre_tokenizer.pattern.Regex");
      ADD_FAILURE() << regex;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidInput);
      EXPECT_THAT(e.what(), HasSubstr("tokenizer.json: pre_tokenizer.pattern.Regex")) << regex;
    }
  }
  EXPECT_THROW(MakeRegexPattern("a)", "x"), Error);
  EXPECT_THROW(MakeRegexPattern(std::string(100, '(') + std::string(100, ')'), "x"), Error);
  EXPECT_THROW(MakeRegexPattern(std::string(1 << 20, 'a'), "x"), Error);
}

Words Split(const char* config, const std::string& text, bool at_start = true) {
  const json document = {{"pre_tokenizer", json::parse(config)}};
  const auto tokenizer = PreTokenizer::Parse(JsonValue(&document, "test: ")["pre_tokenizer"]);
  Words words;
  tokenizer.Split({text, at_start}, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

TEST(PreTokenizer, SplitBehaviors) {
  const auto split = [](const std::string& behavior, bool invert = false) {
    const json config = {{"type", "Split"},
                         {"pattern", {{"String", "-"}}},
                         {"behavior", behavior},
                         {"invert", invert}};
    return Split(config.dump().c_str(), "the-final--countdown");
  };
  EXPECT_THAT(split("Removed"), ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(split("Removed", true), ElementsAre("-", "-", "-"));
  EXPECT_THAT(split("Isolated"), ElementsAre("the", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(split("MergedWithPrevious"), ElementsAre("the-", "final-", "-", "countdown"));
  EXPECT_THAT(split("MergedWithNext"), ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(split("Contiguous"), ElementsAre("the", "-", "final", "--", "countdown"));
}

TEST(PreTokenizer, Metaspace) {
  const std::string meta = "\u2581";
  const auto config = [](const char* scheme, bool split) {
    return json{{"type", "Metaspace"},
                {"replacement", "\u2581"},
                {"prepend_scheme", scheme},
                {"split", split}}
        .dump();
  };
  EXPECT_THAT(Split(config("always", true).c_str(), "a  b", false),
              ElementsAre(meta + "a", meta, meta + "b"));
  EXPECT_THAT(Split(config("first", false).c_str(), "a b", true),
              ElementsAre(meta + "a" + meta + "b"));
  EXPECT_THAT(Split(config("first", false).c_str(), "a b", false), ElementsAre("a" + meta + "b"));
  EXPECT_THAT(Split(config("always", false).c_str(), " a", true), ElementsAre(meta + "a"));
  EXPECT_THAT(Split(config("never", true).c_str(), "a b"), ElementsAre("a", meta + "b"));
}

TEST(PreTokenizer, KindsOfCharacters) {
  EXPECT_THAT(Split(R"({"type":"Digits","individual_digits":true})", "a12b"),
              ElementsAre("a", "1", "2", "b"));
  EXPECT_THAT(Split(R"({"type":"Digits","individual_digits":false})", "a12b"),
              ElementsAre("a", "12", "b"));
  EXPECT_THAT(Split(R"({"type":"Punctuation"})", "a.b$"), ElementsAre("a", ".", "b", "$"));
}

}  // namespace
}  // namespace qlora
