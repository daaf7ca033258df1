// Checkpoints of several files with an index.
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/safetensors_fixture.h"
#include "io/safetensors_writer.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ShardsTest : public SafetensorsTest {
 protected:
  // Three groups of 24 bytes and one of 8, in shards of at most 50 bytes.
  const std::vector<TensorInfo> tensors_ = {
      {"a.weight", DType::kU8, {20}},        {"b.weight", DType::kU8, {20}},
      {"a.weight.absmax", DType::kF32, {1}}, {"b.weight.absmax", DType::kF32, {1}},
      {"c.weight", DType::kBF16, {12}},      {"norm", DType::kF32, {2}}};

  void WriteShards() {
    WriteAll(*CreateShardedSafetensors(folder_.path(), tensors_, {{"k", "v"}}, 50), tensors_);
  }
  Json Index() const { return ReadJsonFile(folder_ / "model.safetensors.index.json"); }
  void WriteIndex(const Json& index) {
    WriteTextFile(folder_ / "model.safetensors.index.json", index.dump());
  }
};

TEST_F(ShardsTest, PiecesOfOneWeightShareAShard) {
  WriteShards();
  EXPECT_EQ(folder_.files(), 3u);
  const Json index = Index();
  EXPECT_EQ(index["metadata"]["total_size"], 80);
  EXPECT_EQ(index["weight_map"].size(), 6u);
  for (const char* name : {"a.weight", "a.weight.absmax", "b.weight", "b.weight.absmax"}) {
    EXPECT_EQ(index["weight_map"][name], "model-00001-of-00002.safetensors");
  }
  EXPECT_EQ(index["weight_map"]["c.weight"], "model-00002-of-00002.safetensors");

  const auto reader = OpenSafetensors(folder_.path());
  EXPECT_EQ(reader->metadata().at("k"), "v");
  ASSERT_EQ(reader->tensors().size(), tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const TensorInfo* tensor = reader->Find(tensors_[i].name);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(AsString(reader->Bytes(*tensor)), AsString(BytesOfVector(Content(i, tensors_[i]))));
    EXPECT_THAT(reader->FileOf(*tensor), HasSubstr(index["weight_map"][tensors_[i].name]));
  }
  // Again over the old one, and through the index's own path.
  WriteShards();
  EXPECT_EQ(OpenSafetensors(folder_ / "model.safetensors.index.json")->tensors().size(), 6u);
}

TEST_F(ShardsTest, OneFileWhenAllFits) {
  WriteAll(*CreateShardedSafetensors(folder_ / "new" / "model", tensors_, {}, 80), tensors_);
  EXPECT_TRUE(fs::exists(folder_ / "new" / "model" / "model.safetensors"));
  EXPECT_EQ(OpenSafetensors(folder_ / "new" / "model")->tensors().size(), 6u);
  const auto empty = CreateShardedSafetensors(folder_ / "empty", {}, {}, 80);
  empty->Finish();
  EXPECT_TRUE(OpenSafetensors(folder_ / "empty")->tensors().empty());
}

TEST_F(ShardsTest, AGroupLargerThanAShardIsKeptWhole) {
  WriteAll(*CreateShardedSafetensors(folder_.path(), tensors_, {}, 1), tensors_);
  EXPECT_EQ(folder_.files(), 5u);
  EXPECT_EQ(OpenSafetensors(folder_.path())->tensors().size(), 6u);
}

TEST_F(ShardsTest, ShrinkReachesTheRightShard) {
  std::vector<TensorInfo> tensors = {{"a.weight", DType::kU8, {20}},
                                     {"a.weight.state", DType::kU8, {9}, true},
                                     {"b.weight", DType::kU8, {20}},
                                     {"b.weight.state", DType::kU8, {9}, true}};
  const auto writer = CreateShardedSafetensors(folder_.path(), tensors, {}, 30);
  for (const std::string& state : {std::string("s"), std::string("tt")}) {
    writer->Write(BytesOfVector(std::string(20, 'x')));
    writer->Shrink(static_cast<std::int64_t>(state.size()));
    writer->Write(BytesOfVector(state));
  }
  writer->Finish();
  const auto reader = OpenSafetensors(folder_.path());
  EXPECT_EQ(AsString(reader->Bytes(*reader->Find("a.weight.state"))), "s");
  EXPECT_EQ(AsString(reader->Bytes(*reader->Find("b.weight.state"))), "tt");
  EXPECT_EQ(Index()["metadata"]["total_size"], 43);
}

TEST_F(ShardsTest, NothingIsLeftWithoutFinish) {
  {
    const auto writer = CreateShardedSafetensors(folder_.path(), tensors_, {}, 50);
    writer->Write(BytesOfVector(std::string(20, 'x')));
  }
  EXPECT_EQ(folder_.files(), 0u);
}

TEST_F(ShardsTest, RefusesToMixLayouts) {
  WriteShards();
  ExpectRefused([&] { CreateShardedSafetensors(folder_.path(), tensors_, {}, 1000); },
                "is a checkpoint of several shards");
  fs::remove(folder_ / "model.safetensors.index.json");
  WriteTextFile(folder_ / "model.safetensors", "");
  ExpectRefused([&] { CreateShardedSafetensors(folder_.path(), tensors_, {}, 50); },
                "is a checkpoint of one file");
}

TEST_F(ShardsTest, RefusesIncompleteCheckpoints) {
  WriteShards();
  const fs::path second = folder_ / "model-00002-of-00002.safetensors";
  const std::string content = ReadTextFile(second);
  WriteTextFile(second, content.substr(0, content.size() - 3));
  ExpectRefused([&] { OpenSafetensors(folder_.path()); }, "(incomplete download?)");
  fs::remove(second);
  ExpectRefused([&] { OpenSafetensors(folder_.path()); }, "holds 2 of 6 tensors");
}

TEST_F(ShardsTest, RefusesBrokenIndexes) {
  WriteShards();
  const Json good = Index();
  const auto refused = [&](const Json& index, const std::string& message) {
    WriteIndex(index);
    ExpectRefused([&] { OpenSafetensors(folder_.path()); }, message);
  };
  Json bad = good;
  bad["weight_map"]["norm"] = "model-00001-of-00002.safetensors";
  refused(bad, "tensor 'norm' should be in ");
  bad["weight_map"]["norm"] = "../model.safetensors";
  refused(bad, "is not the name of a file in the folder of the index");
  bad["weight_map"]["norm"] = "";
  refused(bad, "is not the name of a file");
  bad["weight_map"]["norm"] = 3;
  refused(bad, "key 'norm': expected a string");
  refused(Json::object(), "key 'weight_map' must be an object");
  refused(Json::array(), "expected a JSON object");
  WriteTextFile(folder_ / "model.safetensors.index.json", "{");
  ExpectRefused([&] { OpenSafetensors(folder_.path()); }, "not valid JSON");

  // The same tensor in both shards.
  WriteIndex(good);
  fs::copy_file(folder_ / "model-00001-of-00002.safetensors", folder_ / "copy.safetensors");
  bad = good;
  bad["weight_map"]["a.weight"] = "copy.safetensors";
  refused(bad, "appears twice, it is also in");
}

}  // namespace
}  // namespace qlora
