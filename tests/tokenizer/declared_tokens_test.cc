// Tokens and settings that files beside tokenizer.json declare.
#include <gmock/gmock.h>

#include <map>

#include "qlora/error.h"
#include "tokenizer/tokenizer_test_util.h"

namespace qlora {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

// "ab" is merged, "<s>" and "</s>" are pieces that only special files make tokens.
json Plain() {
  return json::parse(R"({
    "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
    "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "<s>": 3, "</s>": 4, "<": 5},
              "merges": ["a b"]}})");
}

json WithBos() {
  json tokenizer = Plain();
  tokenizer["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
      {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {3}}, {"tokens", {"<s>"}}}}}}};
  return tokenizer;
}

Tokenizer LoadWith(const json& tokenizer, const std::map<std::string, json>& files) {
  const TemporaryFolder dir;
  dir.Write("tokenizer.json", tokenizer.dump());
  for (const auto& [name, content] : files) dir.Write(name, content.dump());
  return Tokenizer::Load(dir.path());
}

json Config(json more) {
  json config = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  config.update(more);
  return config;
}

TEST(DeclaredTokens, KeysOfTokenizerConfigReplaceThePostProcessor) {
  const auto ids = [](const json& tokenizer, const json& more) {
    return LoadWith(tokenizer, {{"tokenizer_config.json", Config(more)}}).Encode("ab");
  };
  EXPECT_EQ(ids(WithBos(), json::object()), (Ids{3, 2}));
  EXPECT_EQ(ids(WithBos(), {{"add_bos_token", false}}), (Ids{2}));
  EXPECT_EQ(ids(Plain(), {{"add_bos_token", true}}), (Ids{3, 2}));
  EXPECT_EQ(ids(Plain(), {{"add_bos_token", true}, {"add_eos_token", true}}), (Ids{3, 2, 4}));
  EXPECT_EQ(ids(WithBos(), {{"add_eos_token", true}}), (Ids{2, 4}));
}

// A parser that takes a zero byte for the end would read half of the file.
TEST(DeclaredTokens, NothingFollowsAZeroByte) {
  const TemporaryFolder dir;
  for (const char* behind : {"", "{}", "rubbish"}) {
    dir.Write("tokenizer.json", Plain().dump() + '\0' + behind);
    try {
      Tokenizer::Load(dir.path());
      ADD_FAILURE() << behind;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("is zero"));
    }
  }
}

TEST(DeclaredTokens, ATokenThatDoesNotExistIsNotAdded) {
  EXPECT_EQ(LoadWith(Plain(), {{"tokenizer_config.json", {{"add_bos_token", true}}}}).Encode("ab"),
            (Ids{2}));
}

TEST(DeclaredTokens, TheHashTellsPostProcessorsApart) {
  const auto hash = [](bool bos) {
    return LoadWith(Plain(), {{"tokenizer_config.json", Config({{"add_bos_token", bos}})}})
        .spec()
        .hash;
  };
  EXPECT_NE(hash(true), hash(false));
}

TEST(DeclaredTokens, TokensOfOtherFilesAreCutOutOfTexts) {
  const json entry = {{"content", "<end>"}, {"special", true}, {"normalized", false},
                      {"lstrip", false},    {"rstrip", false}, {"single_word", false}};
  const Tokenizer by_decoder =
      LoadWith(Plain(), {{"tokenizer_config.json", {{"added_tokens_decoder", {{"6", entry}}}}}});
  EXPECT_EQ(by_decoder.Encode("ab<end>a"), (Ids{2, 6, 0}));
  EXPECT_TRUE(by_decoder.IsSpecial(6));
  const Tokenizer by_list = LoadWith(Plain(), {{"added_tokens.json", {{"<end>", 6}}}});
  EXPECT_EQ(by_list.Encode("ab<end>a"), (Ids{2, 6, 0}));
  EXPECT_FALSE(by_list.IsSpecial(6));
  // A piece of the model becomes a token by its role.
  const Tokenizer by_role =
      LoadWith(Plain(), {{"special_tokens_map.json", {{"eos_token", {{"content", "</s>"}}}}}});
  EXPECT_EQ(by_role.Encode("ab</s>"), (Ids{2, 4}));
  EXPECT_EQ(by_role.eos_id(), 4);
}

TEST(DeclaredTokens, EosMayBeDeclaredInOneFileAlone) {
  const json entry = {{"content", "<end>"}, {"special", true}};
  const Tokenizer tokenizer =
      LoadWith(Plain(), {{"tokenizer_config.json",
                          {{"eos_token", "<end>"}, {"added_tokens_decoder", {{"6", entry}}}}}});
  EXPECT_EQ(tokenizer.eos_id(), 6);
  EXPECT_EQ(LoadWith(Plain(), {{"generation_config.json", {{"eos_token_id", {4, 5}}}}}).eos_ids(),
            (Ids{4, 5}));
}

TEST(DeclaredTokens, AnIdThatTransformersWouldNotGiveIsRefused) {
  try {
    LoadWith(Plain(), {{"added_tokens.json", {{"<end>", 9}}}});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("'<end>' has id 9"));
  }
}

}  // namespace
}  // namespace qlora
