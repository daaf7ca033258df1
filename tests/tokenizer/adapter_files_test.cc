// The tokenizer in the folder of an adapter.
#include "tokenizer/adapter_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "io/test_util.h"
#include "tokenizer/gguf_keys_file.h"
#include "tokenizer/tokenizer.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

json Small() {
  return json::parse(R"({
    "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
    "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})");
}

class AdapterFilesTest : public testing::Test {
 protected:
  AdapterFilesTest() {
    for (const char* name : {"model", "adapter", "copy"}) fs::create_directories(root_ / name);
    Write("model/tokenizer.json", Small());
    Write("model/tokenizer_config.json", {{"eos_token", "b"}, {"chat_template", "base"}});
  }

  void Write(const std::string& name, const json& value) {
    WriteTextFile(root_ / name, value.dump());
  }
  std::string Template() const {
    return Tokenizer::Load(root_ / "model", root_ / "adapter").spec().chat_templates.front().text;
  }

  TemporaryFolder root_;
};

TEST_F(AdapterFilesTest, ReadsTheTokenizerOfTheAdapter) {
  const fs::path model = root_ / "model";
  const fs::path adapter = root_ / "adapter";
  EXPECT_EQ(NoteOtherTokenizer(model, adapter), "");
  EXPECT_EQ(NoteOtherTokenizer(model, {}), "");
  // The same tokenizer, written otherwise.
  WriteTextFile(adapter / "tokenizer.json", Small().dump(2));
  EXPECT_EQ(NoteOtherTokenizer(model, adapter), "");

  json other = Small();
  for (const char* token : {"<|tool|>", "<|end|>"}) {
    other["added_tokens"].push_back({{"id", 3 + std::ssize(other["added_tokens"])},
                                     {"content", token},
                                     {"special", true},
                                     {"normalized", false},
                                     {"lstrip", false},
                                     {"rstrip", false},
                                     {"single_word", false}});
  }
  Write("adapter/tokenizer.json", other);
  Write("adapter/tokenizer_config.json", {{"eos_token", "<|end|>"}});
  EXPECT_THAT(NoteOtherTokenizer(model, adapter),
              testing::AllOf(HasSubstr("<|tool|> (3)"), HasSubstr("<|end|> (4)")));
  const Tokenizer tokenizer = Tokenizer::Load(model, adapter);
  EXPECT_THAT(tokenizer.Encode("ab<|tool|>"), ElementsAre(2, 3));
  EXPECT_EQ(tokenizer.eos_id(), 4);
  EXPECT_EQ(Template(), "base");

  CopyTokenizerFiles(model, adapter, root_ / "copy");
  EXPECT_EQ(ReadTextFile(root_ / "copy/tokenizer.json"), other.dump());
}

// However it is written: what encodes, decodes and renders alike.
TEST_F(AdapterFilesTest, TokenizersAreComparedByWhatTheyDo) {
  const fs::path model = root_ / "model";
  const fs::path adapter = root_ / "adapter";
  const Tokenizer base = Tokenizer::Load(model);
  const auto is_same = [&] { return Tokenizer::Load(model, adapter).IsSameAs(base); };
  EXPECT_FALSE(HasOwnTokenizerFiles(model, adapter));
  fs::copy(model / "tokenizer.json", adapter / "tokenizer.json");
  EXPECT_FALSE(HasOwnTokenizerFiles(model, adapter));
  json same = Small();
  same["truncation"] = {{"max_length", 5}};
  WriteTextFile(adapter / "tokenizer.json", same.dump(2));
  EXPECT_TRUE(HasOwnTokenizerFiles(model, adapter));
  EXPECT_TRUE(is_same());
  json other = Small();
  other["decoder"] = {{"type", "Fuse"}};
  Write("adapter/tokenizer.json", other);
  EXPECT_FALSE(is_same());
  other = Small();
  other["model"]["merges"] = json::array();
  Write("adapter/tokenizer.json", other);
  EXPECT_FALSE(is_same());
  fs::remove(adapter / "tokenizer.json");
  for (const json& config : {json{{"eos_token", "a"}}, json{{"eos_token", "b"}, {"pad_token", "a"}},
                             json{{"eos_token", "b"}, {"add_eos_token", true}},
                             json{{"eos_token", "b"}, {"chat_template", "other"}}}) {
    Write("adapter/tokenizer_config.json", config);
    EXPECT_FALSE(is_same()) << config;
  }
  Write("adapter/tokenizer_config.json", {{"eos_token", "b"}, {"padding_side", "left"}});
  EXPECT_TRUE(HasOwnTokenizerFiles(model, adapter));
  EXPECT_TRUE(is_same());
}

TEST_F(AdapterFilesTest, ReadsTheAddedTokensOfTheAdapter) {
  const fs::path model = root_ / "model";
  const fs::path adapter = root_ / "adapter";
  Write("adapter/added_tokens.json", {{"<|tool|>", 3}});
  EXPECT_THAT(NoteOtherTokenizer(model, adapter), HasSubstr("<|tool|> (3)"));
  CopyTokenizerFiles(model, adapter, root_ / "copy");
  EXPECT_THAT(Tokenizer::Load(root_ / "copy").Encode("a<|tool|>"), ElementsAre(0, 3));
}

// A trainer of the checkpoint saves tokenizer.json, which says more than the keys of a GGUF file.
TEST_F(AdapterFilesTest, TheTokenizerOfTheGgufFilesOwnBaseIsNoOther) {
  const fs::path model = root_ / "model.gguf";
  const fs::path adapter = root_ / "adapter";
  KeysToWrite keys = Bytes();
  keys.Add("ab");
  const std::int32_t end = keys.Add("<|end|>", kControlType);
  keys.merges = {"a b"};
  keys.Set("ggml.eos_token_id", static_cast<std::uint32_t>(end));
  json own = Small();
  own["model"]["vocab"] = json::object();
  for (std::int32_t id = 0; id < end; ++id) own["model"]["vocab"][keys.tokens[id]] = id;
  own["pre_tokenizer"] = {{"type", "ByteLevel"},
                          {"add_prefix_space", false},
                          {"trim_offsets", true},
                          {"use_regex", true}};
  const json added = {{"content", "<|end|>"}, {"special", true}, {"normalized", false},
                      {"lstrip", false},      {"rstrip", false}, {"single_word", false}};
  own["added_tokens"].push_back(added);
  own["added_tokens"][0]["id"] = end;
  // Ends of llama.cpp's list and ids that fill the model's rows are no difference.
  keys.Add("<|im_end|>", kControlType);
  keys.Add("[PAD259]", kUnusedType);
  WriteKeys(keys, "model", model);
  Write("adapter/tokenizer.json", own);
  Write("adapter/tokenizer_config.json", {{"eos_token", "<|end|>"}});
  EXPECT_EQ(NoteOtherTokenizer(model, adapter), "");

  own["added_tokens"].push_back(added);
  own["added_tokens"][1].update({{"id", end + 1}, {"content", "<|tool|>"}});
  Write("adapter/tokenizer.json", own);
  EXPECT_THAT(NoteOtherTokenizer(model, adapter), HasSubstr("<|tool|> (258)"));
  own["added_tokens"].erase(1);
  Write("adapter/tokenizer.json", own);
  Write("adapter/tokenizer_config.json", {{"eos_token", "ab"}});
  EXPECT_THAT(NoteOtherTokenizer(model, adapter), HasSubstr("differs from the model's"));
}

TEST_F(AdapterFilesTest, TakesTheTemplateOfTheAdaptersConfiguration) {
  WriteTextFile(root_ / "model/chat_template.jinja", "model's");
  EXPECT_EQ(Template(), "model's");
  Write("adapter/tokenizer_config.json", {{"eos_token", "b"}, {"chat_template", "adapter's"}});
  EXPECT_EQ(Template(), "adapter's");
  EXPECT_THAT(NoteOtherTokenizer(root_ / "model", root_ / "adapter"),
              HasSubstr("the chat template of"));
  WriteTextFile(root_ / "adapter/chat_template.jinja", "file");
  EXPECT_EQ(Template(), "file");
  // This one shows other programs a layout that is not chat.
  Write("adapter/qlora_base.json", {{"prompt_layout", {{"kind", "text"}}}});
  EXPECT_EQ(Template(), "model's");
}

}  // namespace
}  // namespace qlora
