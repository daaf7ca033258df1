#include "data/training_data.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "qlora/error.h"

namespace qlora {
namespace {

constexpr DataLimits kLimits = {1000, 512};

TEST(TrainingDataTest, FieldsBecomeDataOptions) {
  ReadingFields fields;
  fields.max_length = 77;
  fields.over_long = "truncate";
  fields.dataset_format = "alpaca";
  fields.train_on_inputs = true;
  fields.append_eos = false;
  fields.prompt_layout = "text";
  fields.prompt_template = "{q}";
  fields.completion_template = "{a}";
  const DataOptions data = ToDataOptions(fields, {"a.jsonl", "b.csv:0.5"}, kLimits);
  ASSERT_EQ(data.sources.size(), 2U);
  EXPECT_EQ(data.sources[0].path, "a.jsonl");
  EXPECT_EQ(data.sources[0].format, RecordFormat::kInstruction);
  EXPECT_EQ(data.sources[1].path, "b.csv");
  EXPECT_EQ(data.sources[1].weight, 0.5);
  EXPECT_EQ(data.max_length, 77);
  EXPECT_EQ(data.over_long, OverLong::kTruncate);
  EXPECT_TRUE(data.train_on_inputs);
  EXPECT_FALSE(data.append_eos);
  EXPECT_EQ(data.layout.prompt_template, "{q}");
  EXPECT_EQ(data.layout.completion_template, "{a}");
  EXPECT_EQ(data.layout.choice, LayoutChoice::kText);
  EXPECT_EQ(data.vocab_size, 1000);
}

TEST(TrainingDataTest, TheDefaultLengthIsTheContextUpTo2048) {
  ReadingFields fields;
  EXPECT_EQ(ResolveMaxLength(fields, kLimits), 512);
  EXPECT_EQ(ResolveMaxLength(fields, {1000, 131072}), 2048);
  EXPECT_EQ(WarnOfLength(fields, kLimits), "");
  fields.max_length = 512;
  EXPECT_EQ(WarnOfLength(fields, kLimits), "");
  fields.max_length = 513;
  EXPECT_EQ(ResolveMaxLength(fields, kLimits), 513);
  EXPECT_NE(WarnOfLength(fields, kLimits), "");
  fields.max_length = -1;
  EXPECT_THROW(ResolveMaxLength(fields, kLimits), Error);
}

TEST(TrainingDataTest, FoldersAndPatternsStandForTheirFiles) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / "qlora-data-sources";
  fs::remove_all(folder);
  fs::create_directories(folder / "inner.jsonl");
  for (const char* name :
       {"b.jsonl", "a.jsonl", "c.csv", "d.parquet", "notes.md", ".hidden.jsonl"}) {
    std::ofstream(folder / name) << "x";
  }
  const auto names = [&](const std::string& text) {
    std::vector<std::string> found;
    for (const DataSource& source : FindDataSources(text)) {
      found.push_back(source.path.filename().string() + ":" + std::to_string(int(source.weight)));
    }
    return found;
  };
  const std::string dir = folder.string();
  using Found = std::vector<std::string>;
  EXPECT_EQ(names(dir), (Found{"a.jsonl:1", "b.jsonl:1", "c.csv:1", "d.parquet:1"}));
  EXPECT_EQ(names(dir + "/?.jsonl:2"), (Found{"a.jsonl:2", "b.jsonl:2"}));
  EXPECT_EQ(names(dir + "/absent.jsonl"), Found{"absent.jsonl:1"});
  EXPECT_THROW(FindDataSources(dir + "/*.tsv"), Error);
  EXPECT_THROW(FindDataSources((folder / "inner.jsonl").string()), Error);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace qlora
