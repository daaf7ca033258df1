// The tokenizer of a GGUF file as tokenizer.json: the ids of the file. Whole vocabularies are in
// export/gguf_tokenizer_keys_test.cc.
#include "tokenizer/gguf/gguf_tokenizer_json.h"

#include <gmock/gmock.h>

#include "base/file.h"
#include "tokenizer/gguf_keys_file.h"

namespace qlora {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A GGUF file and the folder that is made of it.
struct Both {
  explicit Both(const KeysToWrite& keys, const std::string& name = "model") {
    const auto file = dir.path() / "model.gguf";
    WriteKeys(keys, name, file);
    for (const auto& [file_name, text] : TokenizerFilesOf(ReadGgufVocabulary(file))) {
      WriteTextFile(dir.path() / file_name, text);
    }
    stored.emplace(Tokenizer::Load(file));
    written.emplace(Tokenizer::Load(dir.path()));
  }
  void ExpectSame(const std::string& text) const {
    EXPECT_EQ(written->Encode(text), stored->Encode(text)) << "'" << text << "'";
  }

  TemporaryFolder dir;
  std::optional<Tokenizer> stored;
  std::optional<Tokenizer> written;
};

// Bytes, and merges by which ids show where words are cut: any two of them that a text has.
KeysToWrite Pairs(const std::string& pre) {
  KeysToWrite keys = Bytes(pre);
  const std::vector<std::string> bytes = keys.tokens;
  for (int a = 0; a < 256; ++a) {
    for (const int b : {0x20, 0x65, 0x41, 0x31, 0x2E, 0x0A, 0xA9, 0xB8, 0x81, 0x80}) {
      keys.Add(bytes[a] + bytes[b]);
      keys.merges.push_back(bytes[a] + " " + bytes[b]);
    }
  }
  keys.Add("hello");
  keys.Add("<|end|>", kControlType);
  return keys;
}

std::vector<std::string> NamesOfPreTokenizers() {
  std::vector<std::string> names;
  std::string name;
  for (const char c : GgufPreTokenizerNames() + ",") {
    if (c == ',') names.push_back(std::exchange(name, ""));
    if (c != ',' && c != ' ') name += c;
  }
  return names;
}

TEST(GgufTokenizerJson, SplitsAsTheFileDoes) {
  int own = 0;
  for (const std::string& name : NamesOfPreTokenizers()) {
    SCOPED_TRACE(name);
    KeysToWrite keys = Pairs(name);
    keys.Set("ggml.add_bos_token", false);
    const Both both(keys);
    const GgufPreTokenizer rule = FindGgufPreTokenizer(name).value();
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
      std::string text = RandomText(seed, 10);
      // Where the regular expression of the model is known, it is written: it also tells the case
      // of other letters, and takes the long s for an s.
      if (!rule.trained.empty()) {
        std::erase_if(text, [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
      }
      both.ExpectSame(text);
    }
    both.ExpectSame("hello<|end|>hello hello's 12345\n\n  x");
    own += rule.trained.empty() ? 0 : 1;
  }
  EXPECT_EQ(own, 4);
}

TEST(GgufTokenizerJson, MergesTheHighestScoreFirst) {
  KeysToWrite keys = Pieces();
  const auto a = keys.Add("a", kNormalType, -9);
  keys.Add("b", kNormalType, -9);
  keys.Add("\u2581", kNormalType, -9);
  keys.Add("ab", kNormalType, -2);
  keys.Add("\u2581a", kNormalType, -1);
  keys.Add("bab", kNormalType, -5);
  const auto spaces = keys.Add("  ", kUserType);
  const Both both(keys);
  for (const char* text : {"", "a", "ab", "abab", " ab", "a  b", "a</s>b", "\u00e9a", "ba\nb"}) {
    both.ExpectSame(text);
  }
  EXPECT_EQ(both.written->Decode(std::vector<std::int32_t>{a, spaces}), "a  ");
  EXPECT_EQ(both.written->Decode(both.written->Encode("ab \u00e9b")), "ab \u00e9b");
}

// Gemma 4's pieces, which merge within lines.
TEST(GgufTokenizerJson, PiecesOfCharactersMergeByRank) {
  KeysToWrite keys = Pieces();
  keys.model = "gemma4";
  for (const char* token : {"\u2581", "a", "b", "\n", "\n\n", "\n\n\n", "ab", "\u2581a", "a\u2581a",
                            "bb", "b\n", "\na"}) {
    keys.Add(token);
  }
  keys.Add("<|turn>", kUserType);
  keys.merges = {"b \n", "\n a", "\n \n", "\u2581 a", "a b", "a \u2581a", "\n\n \n"};
  const Both both(keys);
  for (const char* text : {"", "ab a", "a ab", "bb", "a\n\n\nb", "\n\n", "b\n\n\n\n\na",
                           "\u00e9\n b", " a\n a<|turn>a\n", "<|turn>\n\n\n\n<|turn>"}) {
    both.ExpectSame(text);
  }
  EXPECT_EQ(both.written->Decode(both.written->Encode("ab \u00e9\n")), "ab \u00e9\n");
  keys.Add("\n\n\n\n");
  try {
    const Both other(keys);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("has 4 line feeds, which llama.cpp takes whole"));
  }
}

TEST(GgufTokenizerJson, StatesRolesAndTemplates) {
  KeysToWrite keys = Bytes("qwen2");
  const auto end = keys.Add("<|im_end|>", kControlType);
  const auto text_end = keys.Add("<|endoftext|>", kControlType);
  keys.Set("ggml.eos_token_id", static_cast<std::uint32_t>(end));
  keys.Set("ggml.padding_token_id", static_cast<std::uint32_t>(text_end));
  keys.Set("ggml.add_eos_token", true);
  keys.Set("chat_template", std::string("{{ messages }}"));
  const Both one(keys);
  EXPECT_EQ(one.written->eos_id(), end);
  EXPECT_EQ(one.written->pad_id(), text_end);
  EXPECT_THAT(one.written->eos_ids(), ElementsAre(end, text_end));
  EXPECT_TRUE(one.written->adds_eos());
  EXPECT_THAT(one.written->Encode("a"), ElementsAre('a', end));
  EXPECT_TRUE(one.written->IsSpecial(end));
  const std::string config = ReadTextFile(one.dir.path() / "tokenizer_config.json");
  EXPECT_THAT(config, HasSubstr(R"("chat_template": "{{ messages }}")"));
  // The class that builds no stages of its own.
  EXPECT_THAT(config, HasSubstr("PreTrainedTokenizerFast"));

  EXPECT_THAT(config, HasSubstr("model_input_names"));

  keys.Set("chat_template.tool_use", std::string("tools"));
  const Both two(keys);
  ASSERT_EQ(two.written->spec().chat_templates.size(), 2u);
  EXPECT_EQ(two.written->spec().chat_templates[1].name, "tool_use");
}

TEST(GgufTokenizerJson, SpecialTokensOfPhi3TakeTheSpaceBehindThem) {
  KeysToWrite keys = Pieces();
  keys.Add("\u2581", kNormalType, -1);
  keys.Add("a", kNormalType, -1);
  keys.Add("<|user|>", kControlType);
  const Both phi(keys, "Phi-3 mini");
  phi.ExpectSame("<|user|>\n a<s> a");
  const Both other(keys);
  EXPECT_NE(phi.written->Encode("<|user|> a"), other.written->Encode("<|user|> a"));
  EXPECT_THAT(ReadTextFile(other.dir.path() / "tokenizer.json"),
              Not(HasSubstr("\"rstrip\": true")));
}

// Old readers know merges as texts with one space.
TEST(GgufTokenizerJson, MergesAreTextsWherePiecesHaveNoSpace) {
  KeysToWrite keys = Bytes("gpt-2");
  keys.Add("ab");
  keys.merges = {"a b", "a b"};
  const Both both(keys);
  both.ExpectSame("abab");
  EXPECT_THAT(ReadTextFile(both.dir.path() / "tokenizer.json"), HasSubstr("[\"a b\"]"));
}

}  // namespace
}  // namespace qlora
