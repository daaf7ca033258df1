// What the keys of a GGUF file say beside the texts of tokens: roles, ends, templates; and keys
// that are refused or damaged.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <limits>

#include "base/file.h"
#include "qlora/error.h"
#include "tokenizer/gguf_keys_file.h"
#include "tokenizer/tokenizer_test_util.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GgufVocabulary, DefaultIdsOfByteLevelFilesAreFalcons) {
  KeysToWrite keys = Bytes();
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

TEST(GgufVocabulary, EndsOfGenerationByKeysAndTexts) {
  KeysToWrite keys = Bytes("qwen2");
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

TEST(GgufVocabulary, SomeEndsEndPartsOnly) {
  KeysToWrite keys = Bytes("gpt-4o");
  const auto back = keys.Add("<|return|>", kControlType);
  const auto call = keys.Add("<|call|>", kControlType);
  const auto end = keys.Add("<|end|>", kControlType);
  keys.Set("ggml.eos_token_id", static_cast<std::uint32_t>(back));
  const Tokenizer tokenizer = LoadGguf(keys);
  EXPECT_THAT(tokenizer.eos_ids(), ElementsAre(back, call));
  EXPECT_FALSE(tokenizer.IsSpecial(end));

  KeysToWrite tools = Bytes("gpt-4o");
  const auto slash = tools.Add("</s>", kControlType);
  const auto response = tools.Add("<|tool_response>", kControlType);
  tools.Set("ggml.eos_token_id", static_cast<std::uint32_t>(response));
  const Tokenizer with_tools = LoadGguf(tools);
  EXPECT_THAT(with_tools.eos_ids(), ElementsAre(response));
  EXPECT_THAT(with_tools.Encode("</s>"), ElementsAre('<', '/', 's', '>'));
  EXPECT_FALSE(with_tools.IsSpecial(slash));
}

TEST(GgufVocabulary, UserDefinedTokensAreShownAsTheyAre) {
  KeysToWrite keys = Bytes("qwen2");
  // Of byte characters alone: as a normal token it would be the byte 0xE9.
  const auto user = keys.Add("\u00e9\u00e9", kUserType);
  const Tokenizer tokenizer = LoadGguf(keys);
  EXPECT_EQ(tokenizer.Decode(std::vector<std::int32_t>{user}), "\u00e9\u00e9");
  Tokenizer::StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.Add(0xC3), "");
  EXPECT_EQ(stream.Add(0xA9), "\u00e9");
  EXPECT_EQ(stream.Add(user), "\u00e9\u00e9");
}

TEST(GgufVocabulary, ReadsChatTemplates) {
  KeysToWrite keys = Bytes();
  keys.Set("chat_template.tool_use", std::string("tools"));
  keys.Set("chat_template", std::string("plain"));
  keys.Set("chat_templates", GgufArray(std::vector<std::string>{"tool_use"}));
  const auto templates = LoadGguf(keys).spec().chat_templates;
  ASSERT_EQ(templates.size(), 2u);
  EXPECT_EQ(templates[0].name, "default");
  EXPECT_EQ(templates[0].text, "plain");
  EXPECT_EQ(templates[1].name, "tool_use");

  // One with its name, behind others, where no key has it without one.
  KeysToWrite named = Bytes();
  named.Set("chat_template.tool_use", std::string("tools"));
  named.Set("chat_template.default", std::string("named"));
  const auto by_name = LoadGguf(named).spec().chat_templates;
  ASSERT_EQ(by_name.size(), 2u);
  EXPECT_EQ(by_name[0].text, "named");
  EXPECT_EQ(by_name[1].text, "tools");
  named.Set("chat_template", std::string("plain"));
  EXPECT_EQ(LoadGguf(named).spec().chat_templates.at(0).text, "plain");
  EXPECT_EQ(LoadGguf(named).spec().chat_templates.size(), 2u);

  const TemporaryFolder adapter;
  adapter.Write("adapter/chat_template.jinja", "own");
  const auto own = LoadGguf(keys, "model", adapter.path() / "adapter").spec().chat_templates;
  ASSERT_EQ(own.size(), 1u);
  EXPECT_EQ(own[0].text, "own");
}

TEST(GgufVocabulary, AdaptersMayHaveTheirOwnTokenizer) {
  const TemporaryFolder adapter;
  adapter.Write("own/tokenizer.json", ReadFixture("gpt2/tokenizer.json").dump());
  KeysToWrite keys = Bytes();
  const Tokenizer own = LoadGguf(keys, "model", adapter.path() / "own");
  const Tokenizer gpt2 = Tokenizer::Load(FixtureDir() / "gpt2");
  EXPECT_EQ(own.Encode("the cat"), gpt2.Encode("the cat"));
  EXPECT_EQ(own.vocab_size(), gpt2.vocab_size());
}

TEST(GgufVocabulary, HashTellsTokenizersApart) {
  const KeysToWrite keys = Bytes();
  KeysToWrite other = keys;
  other.types['a'] = kUserType;
  EXPECT_EQ(LoadGguf(keys).spec().hash, LoadGguf(keys).spec().hash);
  EXPECT_NE(LoadGguf(keys).spec().hash, LoadGguf(other).spec().hash);
  KeysToWrite renamed = Bytes("smollm");
  EXPECT_NE(LoadGguf(keys).spec().hash, LoadGguf(renamed).spec().hash);
}

TEST(GgufVocabulary, RefusesKindsByName) {
  for (const char* model : {"bert", "t5", "rwkv", "plamo2", "none", "future"}) {
    KeysToWrite keys = Bytes();
    keys.model = model;
    EXPECT_THAT(RefusalOf(keys), AllOf(HasSubstr(model), HasSubstr("gpt2"), HasSubstr("give")));
  }
  EXPECT_THAT(RefusalOf(Bytes("kimi-k2")),
              AllOf(HasSubstr("kimi-k2"), HasSubstr("llama-bpe"), HasSubstr("give")));
  const TemporaryFolder dir;
  CreateGguf(dir.path() / "empty.gguf", GgufMetadata(), {})->Finish();
  try {
    Tokenizer::Load(dir.path() / "empty.gguf");
    FAIL() << "loaded";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("tokenizer.ggml.model"), HasSubstr("missing")));
  }
}

TEST(GgufVocabulary, RefusesMetadataThatDisagrees) {
  const auto refusal = [](const std::string& key, GgufValue value, KeysToWrite keys) {
    keys.Set(key, std::move(value));
    const std::string text = RefusalOf(keys);
    EXPECT_THAT(text, HasSubstr("tokenizer." + key));
    return text;
  };
  using Texts = std::vector<std::string>;
  const KeysToWrite keys = Bytes();
  const KeysToWrite pieces = Pieces();
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
  KeysToWrite padded = keys;
  padded.Set("ggml.padding_token_id", std::uint32_t{256});
  EXPECT_EQ(LoadGguf(padded).pad_id(), std::nullopt);
}

TEST(GgufVocabulary, RefusesTokensOfEndlessLength) {
  KeysToWrite keys = Pieces();
  keys.Add(std::string(2000, 'a'));
  EXPECT_THAT(RefusalOf(keys), HasSubstr("2000 bytes"));
  // Many that are just short enough.
  KeysToWrite many = Pieces();
  for (int i = 0; i < 1100; ++i) {
    std::string text = fmt::format("{:04}", i);
    many.Add(text.append(1020, 'a'));
  }
  EXPECT_THAT(RefusalOf(many), HasSubstr("the sum of the squares of their bytes"));
  KeysToWrite special = Bytes();
  special.Add(std::string(2000, '<'), kControlType);
  EXPECT_THAT(RefusalOf(special), HasSubstr("2000 bytes"));
}

TEST(GgufVocabulary, EmptyTextsAreNamedByTheirIds) {
  KeysToWrite keys = Bytes();
  const auto empty = keys.Add("");
  EXPECT_EQ(LoadGguf(keys).TokenText(empty), "[EMPTY_256]");
}

// Damaged files are refused or tokenize; nothing else happens.
TEST(GgufVocabulary, SurvivesDamagedMetadata) {
  KeysToWrite keys = Pieces();
  keys.Add("\u2581a", kNormalType, -1);
  keys.Add("<|im_end|>", kUserType);
  keys.Set("chat_template", std::string("{{ messages }}"));
  keys.Set("ggml.eot_token_id", std::uint32_t{5});
  const TemporaryFolder dir;
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

}  // namespace
}  // namespace qlora
