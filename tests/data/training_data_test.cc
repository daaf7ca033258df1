#include "data/training_data.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace qlora
