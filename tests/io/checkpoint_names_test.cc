#include "io/checkpoint_names.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "io/foreign_content.h"
#include "io/json.h"
#include "io/test_util.h"

namespace qlora {
namespace {

TEST(CheckpointNames, WordsOfWrappersAreLeftOut) {
  EXPECT_EQ(WithoutWrappers("module.model.norm.weight"), "model.norm.weight");
  EXPECT_EQ(WithoutWrappers("_orig_mod.model.layers.0._orig_mod.mlp.up_proj.weight"),
            "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(WithoutWrappers("base_model.model.module.lm_head.weight"), "lm_head.weight");
}

TEST(CheckpointNames, TheDecoderIsFoundUnderEachPrefix) {
  const auto prefix = [](const std::string& name) {
    const auto split = SplitDecoderName(name);
    return split ? std::string(split->prefix) : "none";
  };
  EXPECT_EQ(prefix("model.layers.0.mlp.up_proj"), "model.");
  EXPECT_EQ(prefix("layers.11.mlp.up_proj"), "");
  EXPECT_EQ(prefix("language_model.norm.weight"), "language_model.");
  EXPECT_EQ(prefix("model.language_model.embed_tokens.weight"), "model.language_model.");
  EXPECT_EQ(prefix("vision_tower.layers.0.fc1.weight"), "none");
  EXPECT_EQ(prefix("layers.x.weight"), "none");
}

TEST(CheckpointNames, APlaceIsANumberedLayer) {
  const auto place = PlaceInDecoder("model.language_model.layers.12.mlp.up_proj");
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->layer, 12);
  EXPECT_EQ(place->rest, "mlp.up_proj");
  for (const char* name : {"model.layers.-1.mlp.up_proj", "model.layers.+1.mlp.up_proj",
                           "model.layers.1x.mlp.up_proj", "model.layers.1", "model.layers..up_proj",
                           "model.layers.99999999999999999999.mlp.up_proj", "model.norm.weight"}) {
    EXPECT_FALSE(PlaceInDecoder(name).has_value()) << name;
  }
}

TEST(CheckpointNames, OneOfSeveralDecodersIsChosen) {
  const std::vector<std::string> names = {"mtp.embed_tokens.weight", "model.embed_tokens.weight",
                                          "lm_head.weight", "mtp.lm_head.weight"};
  EXPECT_EQ(DecoderPrefixOf(names), "model.");
  EXPECT_EQ(HeadPrefixOf(names, "model."), "");
  EXPECT_EQ(DecoderPrefixOf({"thing.embed_tokens.weight"}), "thing.");
  EXPECT_EQ(DecoderPrefixOf({"a.embed_tokens.weight", "b.embed_tokens.weight"}), std::nullopt);
  EXPECT_EQ(HeadPrefixOf({"language_model.lm_head.weight"}, "language_model.model."),
            "language_model.");
}

TEST(ForeignContent, StandInsAndAnswersOfServersAreNamed) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n";
  const TemporaryFolder folder;
  WriteTextFile(folder / "config.json", pointer);
  ExpectRefused([&] { ReadJsonFile(folder / "config.json"); }, "run `git lfs pull`");
  WriteTextFile(folder / "config.json", "\n<!DOCTYPE html>\n<html></html>");
  ExpectRefused([&] { ReadJsonFile(folder / "config.json"); }, "looks like a web page");
  WriteTextFile(folder / "config.json", "Entry not found");
  ExpectRefused([&] { ReadJsonFile(folder / "config.json"); }, "answer of a server");
  WriteTextFile(folder / "chat_template.jinja", pointer);
  ExpectRefused([&] { ReadOwnText(folder / "chat_template.jinja"); }, "run `git lfs pull`");
  WriteTextFile(folder / "chat_template.jinja", "<s>{{ messages }}");
  EXPECT_EQ(ReadOwnText(folder / "chat_template.jinja"), "<s>{{ messages }}");
}

}  // namespace
}  // namespace qlora
