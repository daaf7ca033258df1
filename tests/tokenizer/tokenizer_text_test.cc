// Encoding and decoding text: the properties that callers may rely on, besides the golden ids.
#include <gmock/gmock.h>

#include <thread>

#include "tokenizer/tokenizer_test_util.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

Tokenizer Fixture(const char* name) { return Tokenizer::Load(FixtureDir() / name); }

// These keep every byte of the text.
TEST(TokenizerText, DecodingGivesTheTextBack) {
  for (const char* name : {"llama3", "gpt2", "smollm2", "o200k", "llama2", "gemma"}) {
    const Tokenizer tokenizer = Fixture(name);
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
      const std::string text = RandomText(seed, static_cast<int>(seed % 30));
      const std::string meta =
          std::string(name) == "llama2" || std::string(name) == "gemma" ? "\u2581" : "";
      std::string expected = text;
      for (std::size_t at = 0;
           !meta.empty() && (at = expected.find(meta, at)) != std::string::npos;) {
        expected.replace(at, meta.size(), " ");
      }
      if (name == std::string("llama2") && text.find("</s>") != std::string::npos)
        continue;  // each stretch gets a space
      EXPECT_EQ(tokenizer.Decode(tokenizer.Encode(text, false), false), expected) << name;
    }
  }
}

TEST(TokenizerText, IllFormedTextCountsAsReplacementCharacters) {
  const Tokenizer tokenizer = Fixture("llama3");
  EXPECT_EQ(tokenizer.Encode("a\xFF\xE2\x82z"), tokenizer.Encode("a\ufffd\ufffdz"));
  EXPECT_EQ(tokenizer.Decode(tokenizer.Encode("a\xFF")), "a\ufffd");
}

TEST(TokenizerText, UnknownIdsGiveNoText) {
  const Tokenizer tokenizer = Fixture("llama3");
  Ids ids = tokenizer.Encode("Hello");
  ids.insert(ids.begin() + 1, {-1, -100, 1 << 30});
  EXPECT_EQ(tokenizer.Decode(ids), "Hello");
}

TEST(TokenizerText, SpecialTokensAreSkippedOnRequest) {
  const Tokenizer tokenizer = Fixture("llama3");
  const Ids ids = tokenizer.Encode("x<|end|><|pad|>");
  EXPECT_EQ(tokenizer.Decode(ids), "x<|pad|>");
  EXPECT_EQ(tokenizer.Decode(ids, false), "<|begin|>x<|end|><|pad|>");
}

TEST(TokenizerText, StreamGivesWholeCharacters) {
  for (const char* name : {"llama3", "llama2", "gemma"}) {
    const Tokenizer tokenizer = Fixture(name);
    const std::string text = "\u4e2d \U0001F44D\U0001F3FD \U0001F5FF\u00e9 end";
    Tokenizer::StreamDecoder stream(tokenizer);
    std::string all;
    for (const std::int32_t id : tokenizer.Encode(text)) {
      const std::string part = stream.Add(id);
      std::string storage;
      EXPECT_EQ(ValidUtf8(part, &storage), part);
      EXPECT_THAT(part, testing::Not(HasSubstr(std::string(kReplacementCharacter)))) << name;
      all += part;
    }
    EXPECT_EQ(all + stream.Finish(), tokenizer.Decode(tokenizer.Encode(text))) << name;
  }
}

TEST(TokenizerText, StreamTellsHalfACharacterAtTheEnd) {
  const Tokenizer tokenizer = Fixture("llama3");
  Ids ids = tokenizer.Encode("a\U0001F5FF", false);
  ids.pop_back();
  Tokenizer::StreamDecoder stream(tokenizer);
  std::string all;
  for (const std::int32_t id : ids) all += stream.Add(id);
  EXPECT_EQ(all, "a");
  EXPECT_EQ(stream.Finish(), "\ufffd");
}

TEST(TokenizerText, StreamAfterAPromptKeepsTheSpace) {
  const Tokenizer tokenizer = Fixture("llama2");
  const Ids prompt = tokenizer.Encode("The cat");
  const Ids all = tokenizer.Encode("The cat sat on");
  const Ids answer(all.begin() + static_cast<std::ptrdiff_t>(prompt.size()), all.end());
  Tokenizer::StreamDecoder alone(tokenizer);
  Tokenizer::StreamDecoder after(tokenizer, true, prompt);
  std::string alone_text, after_text;
  for (const std::int32_t id : answer) {
    alone_text += alone.Add(id);
    after_text += after.Add(id);
  }
  EXPECT_EQ(alone_text + alone.Finish(), "sat on");
  EXPECT_EQ(after_text + after.Finish(), " sat on");
}

// A line break is a byte token here, which is held back until it is known what follows.
TEST(TokenizerText, StreamAfterAPromptLeavesTheEndOfThePromptOut) {
  const Tokenizer tokenizer = Fixture("llama2");
  const Ids prompt = tokenizer.Encode("Question?\n");
  ASSERT_EQ(tokenizer.TokenText(prompt.back()), "<0x0A>");
  for (const char* answer : {"3", "\n\n", "\u4e2d"}) {
    Tokenizer::StreamDecoder stream(tokenizer, true, prompt);
    const Ids all = tokenizer.Encode("Question?\n" + std::string(answer));
    std::string text;
    for (std::size_t t = prompt.size(); t < all.size(); ++t) text += stream.Add(all[t]);
    EXPECT_EQ(text + stream.Finish(), answer);
  }
}

// A first character that the normalizer rewrites is still first, unless it is removed.
// Ids: Hugging Face tokenizers.
TEST(TokenizerText, FirstCharacterStaysFirst) {
  const Tokenizer tokenizer = Fixture("unknown-fused");  // z is removed, th becomes T, x becomes y
  const std::int32_t space = *tokenizer.IdOf("\u2581"), y = *tokenizer.IdOf("y");
  EXPECT_THAT(tokenizer.Encode("y", false), ElementsAre(space, y));
  EXPECT_THAT(tokenizer.Encode("x", false), ElementsAre(space, y));
  EXPECT_THAT(tokenizer.Encode("zy", false), ElementsAre(y));
  EXPECT_THAT(tokenizer.Encode("th", false), ElementsAre(*tokenizer.IdOf("T")));
}

// The same ids whether a long text is one word for the model or is cut where no merge reaches.
TEST(TokenizerText, CutsBeforeSpacesChangeNothing) {
  nlohmann::json definition = ReadFixture("llama2/tokenizer.json");
  const Tokenizer cut = LoadJson(definition);
  definition["model"]["vocab"]["s\u2581"] = definition["model"]["vocab"].size();
  definition["model"]["vocab"]["\u2581\u0001"] = definition["model"]["vocab"].size();
  definition["model"]["vocab"]["\u0001"] = definition["model"]["vocab"].size();
  definition["model"]["vocab"]["\u0001\u2581"] = definition["model"]["vocab"].size();
  definition["model"]["merges"].push_back(
      "\u0001 \u2581");  // reaches over the start of a word, never used
  const Tokenizer whole = LoadJson(definition);
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const std::string text = RandomText(seed, 40);
    EXPECT_EQ(cut.Encode(text), whole.Encode(text));
  }
}

TEST(TokenizerText, MegabyteWithoutSpaces) {
  for (const char* name : {"llama2", "llama3", "gemma"}) {
    const Tokenizer tokenizer = Fixture(name);
    std::string text;
    while (text.size() < (1 << 20)) text += "thecatandthedogandthebird";
    EXPECT_EQ(tokenizer.Decode(tokenizer.Encode(text)), text) << name;
  }
}

TEST(TokenizerText, ThreadsShareATokenizer) {
  const Tokenizer tokenizer = Fixture("qwen2");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (std::uint64_t seed = 0; seed < 200; ++seed) {
        const std::string text = RandomText(seed, 20);
        EXPECT_EQ(tokenizer.Decode(tokenizer.Encode(text), false),
                  tokenizer.Decode(tokenizer.Encode(text), false));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(TokenizerText, AddedTokensTakeSpaceAndRespectWords) {
  const Tokenizer tokenizer = Fixture("splits");
  const auto id = [&](const char* token) { return *tokenizer.IdOf(token); };
  EXPECT_THAT(tokenizer.Encode(" \t[L]"), ElementsAre(id("[L]")));
  EXPECT_THAT(tokenizer.Encode("[R]\n "), ElementsAre(id("[R]")));
  EXPECT_THAT(tokenizer.Encode(" [B] [B]\n"), ElementsAre(id("[B]"), id("[B]")));
  EXPECT_THAT(tokenizer.Encode("word"), ElementsAre(id("word")));
  EXPECT_THAT(tokenizer.Encode("words"), testing::Not(testing::Contains(id("word"))));
  EXPECT_THAT(tokenizer.Encode("\u00e9word"), testing::Not(testing::Contains(id("word"))));
  EXPECT_THAT(tokenizer.Encode("-word."), testing::Contains(id("word")));
}

// Tokens that are white space and take white space: each blank is looked at once.
TEST(TokenizerText, BlankTokensTakeLinearTime) {
  nlohmann::json definition = ReadFixture("splits/tokenizer.json");
  for (nlohmann::json& token : definition["added_tokens"]) {
    if (token["content"] == "  ") token["lstrip"] = token["rstrip"] = true;
  }
  const Tokenizer tokenizer = LoadJson(definition);
  EXPECT_EQ(tokenizer.Encode(std::string(1 << 21, ' ')).size(), 1 << 20);
}

}  // namespace
}  // namespace qlora
