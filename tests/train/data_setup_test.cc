#include "train/data_setup.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

TEST(DataSetupTest, FieldsBecomeDataOptions) {
  DataFields fields;
  fields.max_length = 77;
  fields.over_long = "truncate";
  fields.dataset_format = "alpaca";
  fields.train_on_inputs = true;
  fields.dataset_prepared_path = "index";
  const DataOptions data = ToDataOptions(fields, {"a.jsonl", "b.csv:0.5"}, 1000);
  ASSERT_EQ(data.sources.size(), 2U);
  EXPECT_EQ(data.sources[0].path, "a.jsonl");
  EXPECT_EQ(data.sources[0].format, RowFormat::kInstruction);
  EXPECT_EQ(data.sources[1].path, "b.csv");
  EXPECT_EQ(data.sources[1].weight, 0.5);
  EXPECT_EQ(data.max_length, 77);
  EXPECT_EQ(data.over_long, OverLong::kTruncate);
  EXPECT_TRUE(data.train_on_inputs);
  EXPECT_EQ(data.index_folder, "index");
  EXPECT_EQ(data.vocab_size, 1000);
}

}  // namespace
}  // namespace qlora
