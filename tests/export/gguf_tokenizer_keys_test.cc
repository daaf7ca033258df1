// Tokenizers written as keys of GGUF and read again give the ids of the tokenizer.json.
#include "export/gguf/gguf_tokenizer_keys.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/file.h"
#include "export/gguf/gguf_pre_names.h"
#include "gguf/gguf_writer.h"
#include "test_build.h"
#include "tokenizer/gguf/gguf_tokenizer_json.h"
#include "tokenizer/gguf_keys_file.h"
#include "tokenizer/tokenizer_test_util.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

GgufMetadata KeysOf(const Tokenizer& tokenizer, const std::string& architecture = "llama") {
  GgufMetadata metadata;
  std::vector<std::string> notes;
  AddTokenizerMetadata(tokenizer, architecture, tokenizer.vocab_size(),
                       tokenizer.spec().add_prefix_space, metadata, notes);
  return metadata;
}

Tokenizer ReadBack(const GgufMetadata& keys) {
  const TemporaryFolder dir;
  CreateGguf(dir.path() / "model.gguf", keys, {})->Finish();
  return Tokenizer::Load(dir.path() / "model.gguf");
}

std::vector<std::string> Texts(const Tokenizer& tokenizer) {
  std::vector<std::string> texts = {
      "",
      " ",
      "   leading and trailing   ",
      "two  spaces\n\nand\r\nlines\n",
      "\ttabs\t\tand \v\f",
      "it's we'LL I'd 'tis",
      "1 12 123 1234 12345 3.14159 1,000,000",
      "int main() { return x[i] += 0x1F; }  // code",
      "caf\u00e9 na\u00efve \u0434\u0430 \u4e2d\u6587 \u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4",
      "\U0001F600\U0001F44D\U0001F3FD \u2764\uFE0F",
      "\u00a0\u2003\u3000 wide spaces",
      "<0x41> \u2581 \uFFFD \u0001",
  };
  for (const AddedToken& token : tokenizer.spec().added_tokens) {
    if (!token.special) continue;
    const std::string& text = token.content;
    texts.insert(texts.end(), {text, "a" + text + "b", text + text, "x " + text + " y",
                               text.substr(0, text.size() - 1), "\n" + text + "\n"});
  }
  for (std::uint64_t seed = 0; seed < 300; ++seed) texts.push_back(RandomText(seed, 12));
  if (tokenizer.spec().normalizer.find("NFC") != std::string::npos) {
    // GGUF has no key for the normal form, which nearly all texts have.
    std::erase_if(texts, [](const std::string& text) {
      std::string storage;
      const std::string_view valid = ValidUtf8(text, &storage);
      return Normalize(valid, NormalForm::kNfc) != valid;
    });
  }
  return texts;
}

// The files of a checkpoint that are made of these keys give the ids of the keys.
void ExpectSameIdsOfFiles(const GgufMetadata& keys) {
  const TemporaryFolder dir;
  const fs::path gguf = dir.path() / "model.gguf";
  CreateGguf(gguf, keys, {})->Finish();
  for (const auto& [name, text] : TokenizerFilesOf(ReadGgufVocabulary(gguf))) {
    WriteTextFile(dir.path() / name, text);
  }
  const Tokenizer stored = Tokenizer::Load(gguf);
  const Tokenizer written = Tokenizer::Load(dir.path());
  for (const std::string& text : Texts(stored)) {
    const auto ids = stored.Encode(text);
    EXPECT_EQ(written.Encode(text), ids) << "'" << text << "'";
    EXPECT_EQ(written.Decode(ids), stored.Decode(ids)) << "'" << text << "'";
  }
  EXPECT_EQ(written.bos_id(), stored.bos_id());
  // Without a key, ends by their texts alone.
  EXPECT_TRUE(!stored.eos_id() || written.eos_id() == stored.eos_id());
  EXPECT_EQ(written.pad_id(), stored.pad_id());
  EXPECT_EQ(written.unk_id(), stored.unk_id());
  EXPECT_EQ(written.eos_ids(), stored.eos_ids());
  EXPECT_EQ(written.adds_bos(), stored.adds_bos());
  EXPECT_EQ(written.adds_eos(), stored.adds_eos());
  ASSERT_EQ(written.spec().chat_templates.size(), stored.spec().chat_templates.size());
  for (std::size_t i = 0; i < stored.spec().chat_templates.size(); ++i) {
    EXPECT_EQ(written.spec().chat_templates[i].name, stored.spec().chat_templates[i].name);
    EXPECT_EQ(written.spec().chat_templates[i].text, stored.spec().chat_templates[i].text);
  }
  // And they are a GGUF file again.
  const GgufMetadata again = KeysOf(written);
  for (const char* key : {"tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.merges",
                          "tokenizer.ggml.tokens", "tokenizer.ggml.add_space_prefix"}) {
    const GgufValue* value = keys.Find(key);
    ASSERT_EQ(again.Find(key) != nullptr, value != nullptr) << key;
    EXPECT_TRUE(value == nullptr || *again.Find(key) == *value) << key;
  }
}

void ExpectSameIds(const fs::path& folder) {
  const Tokenizer tokenizer = Tokenizer::Load(folder);
  const Tokenizer again = ReadBack(KeysOf(tokenizer));
  // llama.cpp takes any token </s> for an end, though Qwen 2 has it as a piece of text.
  const auto holds_end_of_gguf_alone = [&](const std::string& text) {
    return std::any_of(again.eos_ids().begin(), again.eos_ids().end(), [&](std::int32_t id) {
      return !tokenizer.IsSpecial(id) && text.find(tokenizer.TokenText(id)) != std::string::npos;
    });
  };
  for (const std::string& text : Texts(tokenizer)) {
    if (holds_end_of_gguf_alone(text)) continue;
    const auto ids = tokenizer.Encode(text);
    EXPECT_EQ(again.Encode(text), ids) << folder << ": '" << text << "'";
    EXPECT_EQ(again.Decode(ids), tokenizer.Decode(ids)) << folder << ": '" << text << "'";
  }
  EXPECT_EQ(again.bos_id(), tokenizer.bos_id());
  EXPECT_EQ(again.adds_bos(), tokenizer.adds_bos());
  EXPECT_EQ(again.adds_eos(), tokenizer.adds_eos());
  for (const std::int32_t end : tokenizer.eos_ids()) {
    EXPECT_THAT(again.eos_ids(), testing::Contains(end)) << folder;
  }
  // With the defaults of missing keys written out, nothing changes any more.
  const GgufMetadata whole = KeysOf(again);
  EXPECT_TRUE(KeysOf(ReadBack(whole)) == whole) << folder;
  SCOPED_TRACE(folder);
  ExpectSameIdsOfFiles(KeysOf(tokenizer));
}

TEST(GgufTokenizerKeys, GoldenModelsComeBack) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(SourceDir() / "tests/golden")) {
    if (!fs::exists(entry.path() / "tokenizer.json")) continue;
    ExpectSameIds(entry.path());
    ++count;
  }
  EXPECT_GE(count, 10);
}

// Real kinds of tokenizers. Others split or prefix in ways that GGUF has no key for.
TEST(GgufTokenizerKeys, FixturesComeBack) {
  for (const char* name : {"gpt2", "llama2", "llama3", "qwen2", "smollm2", "phi4", "gemma",
                           "cl100k", "hunyuan", "qwen35", "seed-oss"}) {
    ExpectSameIds(FixtureDir() / name);
  }
}

// Gemma 4's own tokenizer puts no space before a text.
TEST(GgufTokenizerKeys, Gemma4HasMergesInThePlaceOfScores) {
  const auto model_of = [](const char* fixture, const char* architecture) {
    const GgufMetadata keys = KeysOf(Tokenizer::Load(FixtureDir() / fixture), architecture);
    EXPECT_EQ(keys.Find("tokenizer.ggml.scores") == nullptr,
              keys.Find("tokenizer.ggml.merges") != nullptr);
    return std::get<std::string>(*keys.Find("tokenizer.ggml.model"));
  };
  EXPECT_EQ(model_of("gemma", "gemma4"), "gemma4");
  EXPECT_EQ(model_of("gemma", "gemma3"), "llama");
  EXPECT_EQ(model_of("llama2", "gemma4"), "llama");
  const Tokenizer tokenizer = Tokenizer::Load(FixtureDir() / "gemma");
  const Tokenizer again = ReadBack(KeysOf(tokenizer, "gemma4"));
  for (const std::string& text : Texts(tokenizer)) {
    EXPECT_EQ(again.Encode(text), tokenizer.Encode(text)) << "'" << text << "'";
  }
}

// llama.cpp's rules of some names differ from tokenizer.json outside of ASCII, or in what they do
// with words that are tokens.
TEST(GgufTokenizerKeys, PreTokenizersHaveNames) {
  const auto name_of = [](const char* fixture, std::vector<std::string>& notes) {
    return GgufPreName(Tokenizer::Load(FixtureDir() / fixture).spec(), notes);
  };
  const std::pair<const char*, const char*> known[] = {
      {"tekken", "tekken"},    {"qwen35", "qwen35"},       {"seed-oss", "seed-coder"},
      {"llama3", "llama-bpe"}, {"phi4", "dbrx"},           {"cl100k", "dbrx"},
      {"qwen2", "qwen2"},      {"hunyuan", "deepseek-v3"}, {"gpt2", "gpt-2"},
      {"smollm2", "smollm"},
  };
  for (const auto& [fixture, name] : known) {
    std::vector<std::string> notes;
    EXPECT_EQ(name_of(fixture, notes), name);
    EXPECT_THAT(notes, testing::IsEmpty()) << fixture;
  }
  std::vector<std::string> notes;
  EXPECT_EQ(name_of("o200k", notes), "gpt-4o");
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_THAT(notes[0], testing::HasSubstr("does not take words that are tokens"));
  notes.clear();
  EXPECT_EQ(name_of("falcon3", notes), "falcon3");
  EXPECT_THAT(notes, testing::Contains(testing::HasSubstr("splits digits and punctuation")));
  try {
    name_of("splits", notes);
    ADD_FAILURE() << "named";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("GGUF has no name for the pre-tokenizer"));
  }
}

// All tokens that end a generation are in the file, also those whose texts llama.cpp does not know.
TEST(GgufTokenizerKeys, FurtherEndsHaveKeys) {
  const TemporaryFolder dir;
  fs::copy(FixtureDir() / "qwen2" / "tokenizer.json", dir.path() / "tokenizer.json");
  const Tokenizer plain = Tokenizer::Load(dir.path());
  const std::int32_t begin = plain.IdOf("<|begin|>").value();
  std::ofstream(dir.path() / "tokenizer_config.json") << R"({"eos_token": "<|begin|>"})";
  std::ofstream(dir.path() / "generation_config.json")
      << fmt::format(R"({{"eos_token_id": [{}, {}, {}]}})", begin, 65, 66);
  const Tokenizer tokenizer = Tokenizer::Load(dir.path());
  const Tokenizer again = ReadBack(KeysOf(tokenizer));
  EXPECT_THAT(again.eos_ids(), testing::IsSupersetOf({65, 66, begin}));
}

// Merges in place of scores stay what they are.
TEST(GgufTokenizerKeys, MergedPiecesComeBack) {
  KeysToWrite keys = Pieces();
  keys.model = "gemma4";
  keys.Set("ggml.bos_token_id", std::uint32_t{1});
  keys.Set("ggml.eos_token_id", std::uint32_t{2});
  for (const char* piece : {"a", "b", "ab", "ba"}) keys.Add(piece);
  keys.merges = {"a b"};
  const Tokenizer tokenizer = LoadGguf(keys);
  const GgufMetadata written = KeysOf(tokenizer);
  const Tokenizer again = ReadBack(written);
  for (const char* text : {"ab", "baba", " a\n"}) {
    EXPECT_EQ(again.Encode(text), tokenizer.Encode(text)) << text;
  }
  EXPECT_TRUE(KeysOf(again) == written);
}

// Those of real models, where the folder beside the repository is there.
TEST(GgufTokenizerKeys, RealTokenizersComeBack) {
  const fs::path folder = SharedFolder() / "data/tokenizers";
  if (!fs::is_directory(folder)) GTEST_SKIP() << "no " << folder;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (fs::exists(entry.path() / "tokenizer.json")) ExpectSameIds(entry.path());
  }
}

// Two spaces, which Gemma has as an added token, are a token of text in GGUF: llama.cpp would print
// a user-defined one with U+2581.
TEST(GgufTokenizerKeys, AddedTokensOfSpacesAreText) {
  const Tokenizer gemma = Tokenizer::Load(FixtureDir() / "gemma");
  const auto spaces = gemma.IdOf("\u2581\u2581");
  ASSERT_TRUE(spaces.has_value());
  const Tokenizer again = ReadBack(KeysOf(gemma));
  EXPECT_EQ(again.Decode(std::vector<std::int32_t>{*gemma.IdOf("a"), *spaces}), "a  ");
}

}  // namespace
}  // namespace qlora
