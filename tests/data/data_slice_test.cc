// Slices of files: what is one, which records it holds, and what a data set then has.
#include "data/data_slice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/data_options.h"
#include "data/data_test_util.h"

namespace qlora {
namespace {

std::pair<std::int64_t, std::int64_t> Records(std::string text, std::int64_t records) {
  const std::optional<DataSlice> slice = TakeSlice(text);
  EXPECT_EQ(text, "f") << "the slice is taken off";
  return slice ? slice->Of(records) : std::pair<std::int64_t, std::int64_t>{-1, -1};
}

using Range = std::pair<std::int64_t, std::int64_t>;

TEST(DataSliceTest, RecordsAsPythonSlices) {
  EXPECT_EQ(Records("f[:10]", 100), Range(0, 10));
  EXPECT_EQ(Records("f[90:]", 100), Range(90, 100));
  EXPECT_EQ(Records("f[-5:]", 100), Range(95, 100));
  EXPECT_EQ(Records("f[:1000]", 100), Range(0, 100)) << "no more than there are";
  EXPECT_EQ(Records("f[7:3]", 100), Range(7, 7));
  EXPECT_EQ(Records("f[:10%]", 240), Range(0, 24));
  EXPECT_EQ(Records("f[-10%:]", 240), Range(216, 240));
  EXPECT_EQ(Records("f[:0.5%]", 1000), Range(0, 5));
  EXPECT_EQ(Records("f[:]", 100), Range(0, 100));
}

// To the nearest record, also where 29 / 100 * 100 is a little less than 29.
TEST(DataSliceTest, PercentsAreRounded) {
  EXPECT_EQ(Records("f[:29%]", 100), Range(0, 29));
  EXPECT_EQ(Records("f[:55%]", 9), Range(0, 5));
  EXPECT_EQ(Records("f[55%:]", 9), Range(5, 9));
  EXPECT_EQ(Records("f[:54%]", 8), Range(0, 4));
}

TEST(DataSliceTest, OtherBracketsArePatternsAndNames) {
  for (const char* name : {"data[0-9].jsonl", "data[12]", "data[:a]", "data[:1]x", "[1", "a]",
                           "data[:1.5]", "data[:%]"}) {
    std::string text = name;
    EXPECT_FALSE(TakeSlice(text).has_value()) << name;
    EXPECT_EQ(text, name);
  }
}

TEST(DataSliceTest, BesideAWeight) {
  const DataSource source = ParseDataSource("a.jsonl[:10]:0.5");
  EXPECT_EQ(source.path, "a.jsonl");
  EXPECT_EQ(source.weight, 0.5);
  EXPECT_EQ(source.slice.Of(100), Range(0, 10));
  EXPECT_TRUE(ParseDataSource("a.jsonl:2").slice.is_whole());
}

// Records outside of the slice are not looked at.
TEST(DataSliceTest, ADataSetHasTheRecordsOfItsSlices) {
  using testing::EndsWith;
  const Tokenizer tokenizer = MakeTestTokenizer();
  DataFolder folder;
  const std::string lines =
      folder
          .Write("a.jsonl",
                 "{\n{\"text\": \"u\"}\n{\"text\": \"v\"}\n{\"text\": \"too long\"}\n5\n")
          .path.string();
  const std::string csv = folder.Write("b.csv", "text\nw\nx\ny\nz\n").path.string();
  const std::string text = folder.Write("c.txt", "123456").path.string();
  const TemporaryFolder index;
  const auto open = [&](const std::vector<std::string>& names) {
    DataOptions options;
    for (const std::string& name : names) options.sources.push_back(ParseDataSource(name));
    options.max_length = 4;
    options.index_folder = index.path();
    return Dataset::Open(options, tokenizer, nullptr);
  };
  const std::vector<std::string> names = {lines + "[1:3]", csv + "[1:3]:2", text + "[1:]"};
  for (int pass = 0; pass < 2; ++pass) {  // the second finds the index
    const Dataset data = open(names);
    ASSERT_EQ(data.size(), 5);
    EXPECT_THAT(data.Where(0), EndsWith("a.jsonl:2"));
    EXPECT_THAT(data.Where(3), EndsWith("b.csv:4"));
    EXPECT_THAT(data.Where(4), EndsWith("c.txt: window 2"));
    EXPECT_EQ(data.Get(1).ids, Join({{kBos}, Bytes("v"), {kEos}}));
    EXPECT_EQ(data.Get(2).ids, Join({{kBos}, Bytes("x"), {kEos}}));
    EXPECT_EQ(data.Get(4).ids, Join({{kBos}, Bytes("456")}));
    EXPECT_EQ(data.report().files[1].records, 2);
    EXPECT_EQ(data.report().files[1].weight, 2);
    EXPECT_EQ(data.report().dropped_long, 0);
    EXPECT_EQ(data.parts()[1].samples, 2);
  }
  EXPECT_THAT(open({csv + "[3:]"}).Where(0), EndsWith("b.csv:5"));
  EXPECT_EQ(open({csv}).size(), 4);
  ExpectRefused(
      [&] {
        open({lines + "[1:4]", csv + "[9:]"});
      },
      "b.csv: the slice holds none of its 4 records");
  ExpectRefused([&] { open({lines + "[:2]"}); }, "a.jsonl:1:");
}

}  // namespace
}  // namespace qlora
