// Texts to tokens with tokenizers of GGUF files. Expected values are llama.cpp's (v0.5.0), which
// tests/interop/gguf_tokens.mjs asks about random texts; here stand the rules one by one.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "qlora/error.h"
#include "tokenizer/gguf_keys_file.h"
#include "tokenizer/split/special_partition.h"
#include "tokenizer/tokenizer_test_util.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(GgufTokenizer, MergesTheHighestScoreFirst) {
  KeysToWrite keys = Pieces();
  keys.Set("ggml.add_space_prefix", false);
  const auto a = keys.Add("a", kNormalType, -9);
  const auto b = keys.Add("b", kNormalType, -9);
  keys.Add("c", kNormalType, -9);
  const auto ab = keys.Add("ab", kNormalType, -2);
  const auto bc = keys.Add("bc", kNormalType, -1);
  const auto aa = keys.Add("aa", kNormalType, -3);
  const auto abab = keys.Add("abab", kNormalType, -5);
  const Tokenizer tokenizer = LoadGguf(keys);
  EXPECT_THAT(tokenizer.Encode("abc", false), ElementsAre(a, bc));
  EXPECT_THAT(tokenizer.Encode("abab", false), ElementsAre(abab));
  // The leftmost of equal scores.
  EXPECT_THAT(tokenizer.Encode("aaa", false), ElementsAre(aa, a));
  EXPECT_THAT(tokenizer.Encode("aab", false), ElementsAre(a, ab));
  EXPECT_THAT(tokenizer.Encode("bb", false), ElementsAre(b, b));
}

TEST(GgufTokenizer, EqualScoresOfDifferentTokensMergeFromTheLeft) {
  KeysToWrite keys = Pieces();
  keys.Set("ggml.add_space_prefix", false);
  const auto x = keys.Add("x");
  const auto z = keys.Add("z");
  keys.Add("y");
  const auto yz = keys.Add("yz");
  const auto xy = keys.Add("xy");
  const Tokenizer tokenizer = LoadGguf(keys);
  EXPECT_THAT(tokenizer.Encode("xyz", false), ElementsAre(xy, z));
  EXPECT_THAT(tokenizer.Encode("xxyz", false), ElementsAre(x, xy, z));
  EXPECT_THAT(tokenizer.Encode("yz", false), ElementsAre(yz));
}

TEST(GgufTokenizer, UnknownCharactersMergeOrBecomeBytes) {
  KeysToWrite keys = Pieces();
  const auto space = keys.Add("\u2581");
  // "\u00e9" has no token of its own.
  const auto cafe = keys.Add("f\u00e9", kNormalType, -1);
  keys.Add("f");
  const Tokenizer tokenizer = LoadGguf(keys);
  EXPECT_THAT(tokenizer.Encode("f\u00e9", false), ElementsAre(space, cafe));
  EXPECT_THAT(tokenizer.Encode("\u00e9", false), ElementsAre(space, 3 + 0xC3, 3 + 0xA9));
  const auto ids = tokenizer.Encode(" \u00e9!\U0001F600");
  EXPECT_EQ(ids[0], 1);
  EXPECT_EQ(tokenizer.Decode(ids), " \u00e9!\U0001F600");
  EXPECT_EQ(tokenizer.Decode(std::vector<std::int32_t>{1, 3 + 0xC3, 3 + 0x41}), "\uFFFDA");
}

// Pieces of characters with merges: no space before a text, bytes for unknown characters, and lines
// that end in a piece of line feeds.
TEST(GgufTokenizer, PiecesOfCharactersMergeByRank) {
  KeysToWrite keys = Pieces();
  keys.model = "gemma4";
  keys.Set("ggml.bos_token_id", std::uint32_t{1});
  keys.Set("ggml.add_bos_token", false);
  const auto space = keys.Add("\u2581");
  const auto a = keys.Add("a");
  const auto b = keys.Add("b");
  const auto line = keys.Add("\n");
  const auto lines = keys.Add("\n\n\n");
  const auto ab = keys.Add("ab");
  const auto space_a = keys.Add("\u2581a");
  const auto a_space_a = keys.Add("a\u2581a");
  keys.Add("bb");
  keys.merges = {"\u2581 a", "a b", "a \u2581a"};
  const Tokenizer tokenizer = LoadGguf(keys);
  EXPECT_THAT(tokenizer.Encode("ab a", false), ElementsAre(ab, space_a));
  EXPECT_THAT(tokenizer.Encode("a ab", false), ElementsAre(a_space_a, b));  // across words
  EXPECT_THAT(tokenizer.Encode("bb", false), ElementsAre(b, b)) << "a piece, but no merge";
  EXPECT_THAT(tokenizer.Encode("a\n\n\nb", false), ElementsAre(a, lines, b));
  EXPECT_THAT(tokenizer.Encode("\n\n", false), ElementsAre(line, line));
  EXPECT_THAT(tokenizer.Encode(" \u00e9", false), ElementsAre(space, 3 + 0xC3, 3 + 0xA9));
  EXPECT_THAT(tokenizer.Encode("a"), ElementsAre(1, a)) << "BOS, whatever the key says";
  EXPECT_EQ(tokenizer.Decode(tokenizer.Encode(" ab \u00e9\n")), " ab \u00e9\n");
}

TEST(GgufTokenizer, MissingByteTokensAreNamed) {
  KeysToWrite keys;
  keys.model = "llama";
  keys.Add("<unk>", kUnknownType);
  keys.Add("<s>", kControlType);
  keys.Add("</s>", kControlType);
  keys.Add("\u2581");
  keys.Add("a");
  const Tokenizer tokenizer = LoadGguf(keys);
  EXPECT_THAT(tokenizer.Encode("a", false), ElementsAre(3, 4));
  try {
    tokenizer.Encode("\u00e9");
    FAIL() << "encoded";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("\u00e9"), HasSubstr("<0xC3>")));
  }
}

TEST(GgufTokenizer, SpacePrefixFollowsEverySpecialToken) {
  KeysToWrite keys = Pieces();
  const auto space = keys.Add("\u2581");
  const auto a = keys.Add("a");
  const Tokenizer tokenizer = LoadGguf(keys);
  EXPECT_THAT(tokenizer.Encode("a</s>a a</s>"), ElementsAre(1, space, a, 2, space, a, space, a, 2));
  EXPECT_THAT(tokenizer.Encode(""), ElementsAre(1));
  EXPECT_EQ(tokenizer.Decode(tokenizer.Encode("a a")), "a a");
  EXPECT_EQ(tokenizer.Decode(std::vector<std::int32_t>{1, space, a, 2}, false), "<s> a</s>");
}

TEST(GgufTokenizer, NamePhi3TakesSpaceBehindSpecialTokens) {
  KeysToWrite keys = Pieces();
  keys.Set("ggml.add_space_prefix", false);
  const auto a = keys.Add("a");
  const auto end = keys.Add("<|end|>", kControlType);
  const Tokenizer plain = LoadGguf(keys, "Other");
  const Tokenizer phi = LoadGguf(keys, "A Phi-3 model");
  EXPECT_THAT(phi.Encode("<|end|>\n a", false), ElementsAre(end, a));
  EXPECT_THAT(plain.Encode("<|end|>\na", false), ElementsAre(end, 3 + '\n', a));
  EXPECT_THAT(phi.Encode("<s>\na", false), ElementsAre(1, 3 + '\n', a));
}

TEST(GgufTokenizer, FindsLongSpecialTokensFirst) {
  using Token = SpecialPartition::Token;
  const auto split = [](std::vector<Token> tokens, std::string_view text) {
    const SpecialPartition partition(std::move(tokens));
    std::string found;
    partition.Split(
        text, [&](std::string_view piece) { found += "[" + std::string(piece) + "]"; },
        [&](std::int32_t id) { found += std::to_string(id); });
    return found;
  };
  // From left to right, "ab" would come first.
  EXPECT_EQ(split({{"ab", 1}, {"bcd", 2}}, "abcd"), "[a]2");
  EXPECT_EQ(split({{"ab", 1}, {"bcd", 2}, {"a", 3}}, "abcd"), "32");
  // A place whose longest token is taken away has a shorter one.
  EXPECT_EQ(split({{"abcX", 1}, {"XYZWV", 2}, {"ab", 3}}, "abcXYZWV"), "3[c]2");
  EXPECT_EQ(split({{"aa", 1}}, "aaaaa"), "11[a]");
  EXPECT_EQ(split({{"<e>", 1, true}, {" ", 2}}, "x<e> \n y z"), "[x]1[y]2[z]");
  EXPECT_EQ(split({{"<e>", 1, true}, {"  <f>", 2}}, "<e>   <f>"), "12");
  EXPECT_EQ(split({}, "text"), "[text]");
  EXPECT_EQ(split({{"a", 1}}, ""), "");
}

TEST(GgufTokenizer, ByteLevelMergesByRank) {
  KeysToWrite keys = Bytes();
  keys.merges = {"b c", "a b", "\u0120 a", "b c"};
  const auto bc = keys.Add("bc");
  const auto ab = keys.Add("ab");
  const auto space_a = keys.Add("\u0120a");
  const Tokenizer tokenizer = LoadGguf(keys);
  EXPECT_THAT(tokenizer.Encode("abc ab ac"), ElementsAre('a', bc, ' ', ab, space_a, 'c'));
  EXPECT_FALSE(tokenizer.adds_bos());
  EXPECT_EQ(tokenizer.Decode(tokenizer.Encode(" \u00e9 \U0001F600\n")), " \u00e9 \U0001F600\n");
}

TEST(GgufTokenizer, BytesWithoutTokensSeparateAndVanish) {
  KeysToWrite keys = Bytes();
  keys.merges = {"a b"};
  const auto ab = keys.Add("ab");
  keys.tokens['-'] = "gone";
  const Tokenizer tokenizer = LoadGguf(keys);
  EXPECT_THAT(tokenizer.Encode("a-b"), ElementsAre('a', 'b'));
  EXPECT_THAT(tokenizer.Encode("ab-"), ElementsAre(ab));
  EXPECT_THAT(tokenizer.Encode("---"), IsEmpty());
}

// Which words "It's 2024" and the like are cut into, as merges of neighbours would show it.
TEST(GgufTokenizer, PreTokenizersSplitByName) {
  const auto digits = [](const std::string& pre) {
    KeysToWrite keys = Bytes(pre);
    keys.merges = {"2 0", "2 4", "20 24"};
    for (const char* text : {"20", "24", "2024"}) keys.Add(text);
    keys.Set("ggml.add_bos_token", false);
    return LoadGguf(keys).Encode("2024");
  };
  EXPECT_THAT(digits("gpt-2"), ElementsAre(258));
  EXPECT_THAT(digits("llama-bpe"), ElementsAre(256, '2', '4'));
  EXPECT_THAT(digits("qwen2"), ElementsAre('2', '0', '2', '4'));
  EXPECT_THAT(digits("smollm"), ElementsAre('2', '0', '2', '4'));
  EXPECT_THAT(digits("gpt-4o"), ElementsAre(256, '2', '4'));
  EXPECT_THAT(digits("tekken"), ElementsAre('2', '0', '2', '4'));
}

TEST(GgufTokenizer, DefaultsOfPreTokenizers) {
  const auto load = [](const std::string& pre) {
    KeysToWrite keys = Bytes(pre);
    keys.Add("hello");
    keys.Set("ggml.bos_token_id", std::uint32_t{7});
    return LoadGguf(keys);
  };
  EXPECT_THAT(load("llama-bpe").Encode("hello"), ElementsAre(7, 256));  // ignore_merges, BOS
  EXPECT_THAT(load("dbrx").Encode("hello"), ElementsAre('h', 'e', 'l', 'l', 'o'));
}

// Models with texts that llama.cpp tokenized, where the folder beside the repository is there.
TEST(GgufTokenizer, SharedModelsTokenizeAsInLlamaCpp) {
  const fs::path folder = SharedFolder() / "golden/gguf/models";
  if (!fs::is_directory(folder)) GTEST_SKIP() << "no " << folder;
  std::int64_t texts = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    const auto golden = nlohmann::json::parse(ReadTextFile(entry.path()));
    const Tokenizer tokenizer = Tokenizer::Load(folder / golden["model"].get<std::string>());
    // Some were recorded without reading special tokens, which then are letters.
    const bool reads_special = golden.contains("tokenized with special tokens");
    for (const auto& pair :
         golden[fmt::format("tokenized {} special tokens", reads_special ? "with" : "without")]) {
      const auto text = pair[0].get<std::string>();
      if (!reads_special && text.find("s>") != std::string::npos) continue;
      EXPECT_EQ(tokenizer.Encode(text, false), pair[1].get<std::vector<std::int32_t>>())
          << entry.path() << ": " << text;
      ++texts;
    }
    EXPECT_EQ(tokenizer.adds_bos(), golden["special"]["add_bos"].get<bool>());
    EXPECT_EQ(tokenizer.adds_eos(), golden["special"]["add_eos"].get<bool>());
    EXPECT_EQ(tokenizer.bos_id(), golden["special"]["bos"].get<std::int32_t>());
    EXPECT_EQ(tokenizer.eos_id(), golden["special"]["eos"].get<std::int32_t>());
  }
  EXPECT_GT(texts, 0);
}

}  // namespace
}  // namespace qlora
