#include "base/spelling.h"

#include <gmock/gmock.h>

#include <fstream>
#include <vector>

#include "io/test_util.h"

namespace qlora {
namespace {

using testing::HasSubstr;

const std::vector<std::string> kNames = {"train", "eval", "export"};

TEST(NearestTest, CorrectsAThirdOfTheLetters) {
  EXPECT_EQ(Nearest("trian", kNames), "train");
  EXPECT_EQ(Nearest("exprot", kNames), "export");
  EXPECT_EQ(Nearest("evl", kNames), "eval");
  EXPECT_EQ(Nearest("quantize", kNames), "");
  EXPECT_EQ(Nearest("", kNames), "");
  EXPECT_EQ(Nearest("train", {}), "");
}

TEST(NearestTest, NamesAllThatAreAsNear) {
  const std::vector<std::string> names = {"8b", "0.6b", "4b"};
  EXPECT_THAT(AllNearest("7b", names), testing::ElementsAre("8b", "4b"));
  EXPECT_THAT(AllNearest("train", names), testing::IsEmpty());
}

TEST(NearestTest, SuggestsTheFirstMissingPartOfAPath) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "models" / "llama");
  std::ofstream(folder.path() / "models" / "train.jsonl") << "{}\n";
  const auto suggestion = [&](const char* name) { return SuggestPath(folder.path() / name); };
  EXPECT_THAT(suggestion("model/llama"),
              HasSubstr("did you mean '" + (folder.path() / "models").string() + "'"));
  EXPECT_THAT(suggestion("models/trian.jsonl"), HasSubstr("models/train.jsonl'"));
  EXPECT_THAT(suggestion("models/lama/config.json"), HasSubstr("models/llama'"));
  EXPECT_EQ(suggestion("models/qwen"), "");
  EXPECT_EQ(suggestion("models/llama"), "");
  EXPECT_EQ(SuggestPath(""), "");
}

}  // namespace
}  // namespace qlora
