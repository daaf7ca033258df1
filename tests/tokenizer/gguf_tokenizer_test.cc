// Tokenizers of GGUF files. Expected values are llama.cpp's (v0.5.0), which tests/interop/
// gguf_tokens.mjs asks about random texts; here stand the rules one by one.
#include <gmock/gmock.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "gguf/gguf_writer.h"
#include "qlora/error.h"
#include "tokenizer/byte_characters.h"
#include "tokenizer/special_partition.h"
#include "tokenizer/tokenizer_test_util.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int32_t kNormalType = 1;
constexpr std::int32_t kUnknownType = 2;
constexpr std::int32_t kControlType = 3;
constexpr std::int32_t kUserType = 4;
constexpr std::int32_t kByteType = 6;

// The tokenizer keys of a file in the making.
struct Keys {
  std::string model = "gpt2";
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  std::vector<float> scores;
  std::vector<std::string> merges;
  std::vector<std::pair<std::string, GgufValue>> more;  // without "tokenizer."

  std::int32_t Add(const std::string& text, std::int32_t type = kNormalType, float score = 0) {
    tokens.push_back(text);
    types.push_back(type);
    scores.push_back(score);
    return static_cast<std::int32_t>(tokens.size()) - 1;
  }
  void Set(const std::string& key, GgufValue value) { more.emplace_back(key, std::move(value)); }
};

Tokenizer LoadGguf(const Keys& keys, const std::string& name = "model",
                   const fs::path& adapter = {}) {
  GgufMetadata metadata;
  metadata.Add("general.name", name);
  const auto add = [&](const std::string& key, GgufValue value) {
    const bool set = std::any_of(keys.more.begin(), keys.more.end(),
                                 [&](const auto& entry) { return entry.first == key; });
    if (!set) metadata.Add("tokenizer." + key, std::move(value));
  };
  add("ggml.model", keys.model);
  add("ggml.tokens", GgufArray(keys.tokens));
  add("ggml.token_type", GgufArray(keys.types));
  if (keys.model == "llama") add("ggml.scores", GgufArray(keys.scores));
  if (keys.model == "gpt2") add("ggml.merges", GgufArray(keys.merges));
  for (const auto& [key, value] : keys.more) metadata.Add("tokenizer." + key, value);
  const ScratchDir dir;
  CreateGguf(dir.path() / "model.gguf", metadata, {})->Finish();
  return Tokenizer::Load(dir.path() / "model.gguf", adapter);
}

std::string RefusalOf(const Keys& keys) {
  try {
    LoadGguf(keys);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(error.what(), HasSubstr("model.gguf"));
    return error.what();
  }
  return "accepted";
}

// The 256 byte characters, ids 0 to 255 by byte.
Keys Bytes(const std::string& pre = "gpt-2") {
  Keys keys;
  for (int byte = 0; byte < 256; ++byte) {
    std::string text;
    AppendUtf8(ByteCharacter(static_cast<unsigned char>(byte)), &text);
    keys.Add(text);
  }
  keys.Set("ggml.pre", pre);
  return keys;
}

// <unk> <s> </s> and the 256 byte tokens: ids 0 to 258.
Keys Pieces() {
  Keys keys;
  keys.model = "llama";
  keys.Add("<unk>", kUnknownType);
  keys.Add("<s>", kControlType);
  keys.Add("</s>", kControlType);
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof(text), "<0x%02X>", static_cast<unsigned>(byte));
    keys.Add(text, kByteType);
  }
  return keys;
}

TEST(GgufTokenizer, MergesTheHighestScoreFirst) {
  Keys keys = Pieces();
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
  Keys keys = Pieces();
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
  Keys keys = Pieces();
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

TEST(GgufTokenizer, MissingByteTokensAreNamed) {
  Keys keys;
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
  Keys keys = Pieces();
  const auto space = keys.Add("\u2581");
  const auto a = keys.Add("a");
  const Tokenizer tokenizer = LoadGguf(keys);
  EXPECT_THAT(tokenizer.Encode("a</s>a a</s>"), ElementsAre(1, space, a, 2, space, a, space, a, 2));
  EXPECT_THAT(tokenizer.Encode(""), ElementsAre(1));
  EXPECT_EQ(tokenizer.Decode(tokenizer.Encode("a a")), "a a");
  EXPECT_EQ(tokenizer.Decode(std::vector<std::int32_t>{1, space, a, 2}, false), "<s> a</s>");
}

TEST(GgufTokenizer, NamePhi3TakesSpaceBehindSpecialTokens) {
  Keys keys = Pieces();
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
  Keys keys = Bytes();
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
  Keys keys = Bytes();
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
    Keys keys = Bytes(pre);
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
    Keys keys = Bytes(pre);
    keys.Add("hello");
    keys.Set("ggml.bos_token_id", std::uint32_t{7});
    return LoadGguf(keys);
  };
  EXPECT_THAT(load("llama-bpe").Encode("hello"), ElementsAre(7, 256));  // ignore_merges, BOS
  EXPECT_THAT(load("dbrx").Encode("hello"), ElementsAre('h', 'e', 'l', 'l', 'o'));
}

TEST(GgufTokenizer, DefaultIdsOfByteLevelFilesAreFalcons) {
  Keys keys = Bytes();
  keys.more.clear();  // without a pre-tokenizer
  const Tokenizer none = LoadGguf(keys);
  EXPECT_EQ(none.bos_id(), std::nullopt);
  EXPECT_EQ(none.eos_id(), std::nullopt);
  EXPECT_FALSE(none.adds_bos());
  keys.types[11] = kControlType;
  const Tokenizer falcon = LoadGguf(keys);
  EXPECT_EQ(falcon.bos_id(), 11);
  EXPECT_EQ(falcon.eos_id(), 11);
  EXPECT_THAT(falcon.eos_ids(), ElementsAre(11));
  EXPECT_THAT(RefusalOf(Bytes("llama-bpe")),
              AllOf(HasSubstr("add_bos_token"), HasSubstr("bos_token_id")));
}

TEST(GgufTokenizer, EndsOfGenerationByKeysAndTexts) {
  Keys keys = Bytes("qwen2");
  const auto eot = keys.Add("<|im_end|>");
  const auto text_end = keys.Add("<|endoftext|>", kControlType);
  const auto shown = keys.Add("<|channel|>", kControlType);
  const auto file = keys.Add("<|file_sep|>");
  keys.Add("<|fim_prefix|>");
  keys.Set("ggml.eos_token_id", std::uint32_t{5});
  keys.Set("ggml.eom_token_id", std::uint32_t{6});
  const Tokenizer tokenizer = LoadGguf(keys);
  EXPECT_THAT(tokenizer.eos_ids(), ElementsAre(5, 6, eot, text_end, file));
  // A text with a role is a control token, whatever its type says.
  EXPECT_TRUE(tokenizer.IsSpecial(eot));
  EXPECT_THAT(tokenizer.Encode("<|im_end|>"), ElementsAre(eot));
  EXPECT_TRUE(tokenizer.IsSpecial(*tokenizer.IdOf("<|fim_prefix|>")));
  EXPECT_FALSE(tokenizer.IsSpecial(shown));
  EXPECT_EQ(tokenizer.Decode(std::vector<std::int32_t>{eot, shown, 'a'}), "<|channel|>a");
}

TEST(GgufTokenizer, SomeEndsEndPartsOnly) {
  Keys keys = Bytes("gpt-4o");
  const auto back = keys.Add("<|return|>", kControlType);
  const auto call = keys.Add("<|call|>", kControlType);
  const auto end = keys.Add("<|end|>", kControlType);
  keys.Set("ggml.eos_token_id", static_cast<std::uint32_t>(back));
  const Tokenizer tokenizer = LoadGguf(keys);
  EXPECT_THAT(tokenizer.eos_ids(), ElementsAre(back, call));
  EXPECT_FALSE(tokenizer.IsSpecial(end));

  Keys tools = Bytes("gpt-4o");
  const auto slash = tools.Add("</s>", kControlType);
  const auto response = tools.Add("<|tool_response>", kControlType);
  tools.Set("ggml.eos_token_id", static_cast<std::uint32_t>(response));
  const Tokenizer with_tools = LoadGguf(tools);
  EXPECT_THAT(with_tools.eos_ids(), ElementsAre(response));
  EXPECT_THAT(with_tools.Encode("</s>"), ElementsAre('<', '/', 's', '>'));
  EXPECT_FALSE(with_tools.IsSpecial(slash));
}

TEST(GgufTokenizer, UserDefinedTokensAreShownAsTheyAre) {
  Keys keys = Bytes("qwen2");
  // Of byte characters alone: as a normal token it would be the byte 0xE9.
  const auto user = keys.Add("\u00e9\u00e9", kUserType);
  const Tokenizer tokenizer = LoadGguf(keys);
  EXPECT_EQ(tokenizer.Decode(std::vector<std::int32_t>{user}), "\u00e9\u00e9");
  Tokenizer::StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.Add(0xC3), "");
  EXPECT_EQ(stream.Add(0xA9), "\u00e9");
  EXPECT_EQ(stream.Add(user), "\u00e9\u00e9");
}

TEST(GgufTokenizer, ReadsChatTemplates) {
  Keys keys = Bytes();
  keys.Set("chat_template.tool_use", std::string("tools"));
  keys.Set("chat_template", std::string("plain"));
  keys.Set("chat_templates", GgufArray(std::vector<std::string>{"tool_use"}));
  const auto templates = LoadGguf(keys).spec().chat_templates;
  ASSERT_EQ(templates.size(), 2u);
  EXPECT_EQ(templates[0].name, "default");
  EXPECT_EQ(templates[0].text, "plain");
  EXPECT_EQ(templates[1].name, "tool_use");

  const ScratchDir adapter;
  adapter.Write("adapter/chat_template.jinja", "own");
  const auto own = LoadGguf(keys, "model", adapter.path() / "adapter").spec().chat_templates;
  ASSERT_EQ(own.size(), 1u);
  EXPECT_EQ(own[0].text, "own");
}

TEST(GgufTokenizer, AdaptersMayHaveTheirOwnTokenizer) {
  const ScratchDir adapter;
  adapter.Write("own/tokenizer.json", ReadFixture("gpt2/tokenizer.json").dump());
  Keys keys = Bytes();
  const Tokenizer own = LoadGguf(keys, "model", adapter.path() / "own");
  const Tokenizer gpt2 = Tokenizer::Load(FixtureDir() / "gpt2");
  EXPECT_EQ(own.Encode("the cat"), gpt2.Encode("the cat"));
  EXPECT_EQ(own.vocab_size(), gpt2.vocab_size());
}

TEST(GgufTokenizer, HashTellsTokenizersApart) {
  const Keys keys = Bytes();
  Keys other = keys;
  other.types['a'] = kUserType;
  EXPECT_EQ(LoadGguf(keys).spec().hash, LoadGguf(keys).spec().hash);
  EXPECT_NE(LoadGguf(keys).spec().hash, LoadGguf(other).spec().hash);
  Keys renamed = Bytes("smollm");
  EXPECT_NE(LoadGguf(keys).spec().hash, LoadGguf(renamed).spec().hash);
}

TEST(GgufTokenizer, RefusesKindsByName) {
  for (const char* model : {"bert", "t5", "gemma4", "rwkv", "plamo2", "none", "future"}) {
    Keys keys = Bytes();
    keys.model = model;
    EXPECT_THAT(RefusalOf(keys), AllOf(HasSubstr(model), HasSubstr("gpt2"), HasSubstr("give")));
  }
  EXPECT_THAT(RefusalOf(Bytes("kimi-k2")),
              AllOf(HasSubstr("kimi-k2"), HasSubstr("llama-bpe"), HasSubstr("give")));
  const ScratchDir dir;
  CreateGguf(dir.path() / "empty.gguf", GgufMetadata(), {})->Finish();
  try {
    Tokenizer::Load(dir.path() / "empty.gguf");
    FAIL() << "loaded";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("tokenizer.ggml.model"), HasSubstr("missing")));
  }
}

TEST(GgufTokenizer, RefusesMetadataThatDisagrees) {
  const auto refusal = [](const std::string& key, GgufValue value, Keys keys) {
    keys.Set(key, std::move(value));
    const std::string text = RefusalOf(keys);
    EXPECT_THAT(text, HasSubstr("tokenizer." + key));
    return text;
  };
  using Texts = std::vector<std::string>;
  const Keys keys = Bytes();
  const Keys pieces = Pieces();
  EXPECT_THAT(refusal("ggml.model", std::uint32_t{1}, keys), HasSubstr("expected string"));
  EXPECT_THAT(refusal("ggml.tokens", std::string("a"), keys), HasSubstr("array of string"));
  EXPECT_THAT(refusal("ggml.tokens", GgufArray(Texts{}), keys), HasSubstr("1 to"));
  EXPECT_THAT(refusal("ggml.tokens", GgufArray(Texts{"a", "a"}), keys), HasSubstr("two ids"));
  EXPECT_THAT(refusal("ggml.tokens", GgufArray(Texts{"\xFF"}), keys), HasSubstr("UTF-8"));
  EXPECT_THAT(refusal("ggml.token_type", GgufArray(std::vector<std::int32_t>{1}), keys),
              HasSubstr("1 values for 256 tokens"));
  EXPECT_THAT(refusal("ggml.token_type", GgufArray(std::vector<std::uint32_t>(256, 1)), keys),
              HasSubstr("array of i32"));
  EXPECT_THAT(refusal("ggml.scores", GgufArray(std::vector<float>(3)), pieces),
              HasSubstr("3 values"));
  EXPECT_THAT(refusal("ggml.scores", GgufArray(Texts{"1"}), pieces), HasSubstr("array of f32"));
  std::vector<float> scores(pieces.tokens.size());
  scores[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(refusal("ggml.scores", GgufArray(scores), pieces), HasSubstr("token 7"));
  EXPECT_THAT(refusal("ggml.merges", GgufArray(Texts{"ab"}), keys), HasSubstr("a space"));
  EXPECT_THAT(refusal("ggml.merges", GgufArray(Texts{""}), keys), HasSubstr("a space"));
  EXPECT_THAT(refusal("ggml.merges", GgufArray(Texts{"a bb"}), keys), HasSubstr("'bb'"));
  EXPECT_THAT(refusal("ggml.merges", GgufArray(Texts{"a b"}), keys), HasSubstr("'ab'"));
  EXPECT_THAT(refusal("ggml.merges", std::uint8_t{0}, keys), HasSubstr("array of string"));
  EXPECT_THAT(refusal("ggml.bos_token_id", std::uint32_t{256}, keys), HasSubstr("256 tokens"));
  EXPECT_THAT(refusal("ggml.eos_token_id", std::uint32_t{0xFFFFFFFF}, keys), HasSubstr("less"));
  EXPECT_THAT(refusal("ggml.eos_token_id", std::int32_t{1}, keys), HasSubstr("expected u32"));
  EXPECT_THAT(refusal("ggml.eot_token_id", std::uint32_t{999}, keys), HasSubstr("token 999"));
  EXPECT_THAT(refusal("ggml.add_bos_token", std::uint8_t{1}, keys), HasSubstr("expected bool"));
  EXPECT_THAT(refusal("ggml.add_space_prefix", std::string("no"), pieces), HasSubstr("bool"));
  EXPECT_THAT(refusal("chat_template", std::uint8_t{1}, keys), HasSubstr("string"));
  EXPECT_THAT(refusal("chat_template.x", std::uint8_t{1}, keys), HasSubstr("string"));
  EXPECT_THAT(refusal("ggml.add_bos_token", true, Bytes("glm4")), HasSubstr("names no BOS"));
  // Padding beyond the vocabulary is common in published files.
  Keys padded = keys;
  padded.Set("ggml.padding_token_id", std::uint32_t{256});
  EXPECT_EQ(LoadGguf(padded).pad_id(), std::nullopt);
}

TEST(GgufTokenizer, RefusesTokensOfEndlessLength) {
  Keys keys = Pieces();
  keys.Add(std::string(2000, 'a'));
  EXPECT_THAT(RefusalOf(keys), HasSubstr("2000 bytes"));
  Keys special = Bytes();
  special.Add(std::string(2000, '<'), kControlType);
  EXPECT_THAT(RefusalOf(special), HasSubstr("2000 bytes"));
}

TEST(GgufTokenizer, EmptyTextsAreNamedByTheirIds) {
  Keys keys = Bytes();
  const auto empty = keys.Add("");
  EXPECT_EQ(LoadGguf(keys).TokenText(empty), "[EMPTY_256]");
}

// Damaged files are refused or tokenize; nothing else happens.
TEST(GgufTokenizer, SurvivesDamagedMetadata) {
  Keys keys = Pieces();
  keys.Add("\u2581a", kNormalType, -1);
  keys.Add("<|im_end|>", kUserType);
  keys.Set("chat_template", std::string("{{ messages }}"));
  keys.Set("ggml.eot_token_id", std::uint32_t{5});
  const ScratchDir dir;
  const fs::path path = dir.path() / "model.gguf";
  GgufMetadata metadata;
  metadata.Add("tokenizer.ggml.model", keys.model);
  for (const auto& [key, value] : keys.more) metadata.Add("tokenizer." + key, value);
  metadata.Add("tokenizer.ggml.token_type", GgufArray(keys.types));
  metadata.Add("tokenizer.ggml.scores", GgufArray(keys.scores));
  metadata.Add("tokenizer.ggml.tokens", GgufArray(keys.tokens));
  CreateGguf(path, metadata, {})->Finish();
  const std::string whole = ReadTextFile(path);
  const RandomKey key = MakeKey(1, RandomPlace::kTest);
  std::uint64_t index = 0;
  const auto below = [&](std::uint64_t n) { return RandomBelow(key, index++, n); };
  int loaded = 0;
  for (int i = 0; i < 400; ++i) {
    std::string damaged = whole;
    for (int changes = 0; changes < 1 + i % 4; ++changes) {
      damaged[below(damaged.size())] = static_cast<char>(below(256));
    }
    std::ofstream(path, std::ios::binary) << damaged;
    try {
      const Tokenizer tokenizer = Tokenizer::Load(path);
      tokenizer.Decode(tokenizer.Encode("a <|im_end|> text \u00e9"));
      ++loaded;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput) << error.what();
    }
  }
  EXPECT_GT(loaded, 0);
  EXPECT_LT(loaded, 400);
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
    for (const auto& pair : golden["tokenized with special tokens"]) {
      const auto text = pair[0].get<std::string>();
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
