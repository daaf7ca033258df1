// Files of several writers against the rows that other readers found in them, and files that are
// broken on purpose.
#include "parquet/parquet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "io/json.h"
#include "io/test_util.h"
#include "parquet/rle_bit_packed.h"
#include "parquet/schema.h"
#include "parquet/thrift_reader.h"
#include "parquet/thrift_struct.h"
#include "test_build.h"

namespace qlora::parquet {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const fs::path kGoldenParquet = SourceDir() / "tests/golden/parquet";

Source SourceOfBytes(std::string name, const std::string& bytes) {
  return {.name = std::move(name),
          .size = bytes.size(),
          .read = [&bytes](std::uint64_t begin, std::uint64_t count) {
            EXPECT_LE(begin + count, bytes.size());
            return bytes.substr(begin, count);
          }};
}

std::vector<std::string> LinesOfBytes(const std::string& bytes, const TextLimits& limits = {}) {
  std::vector<std::string> lines;
  WriteJsonLines(
      SourceOfBytes("x.parquet", bytes), [&](std::string_view line) { lines.emplace_back(line); },
      limits);
  return lines;
}

// Values that take two bytes, as the indices of large dictionaries do.
TEST(RleBitPacked, RunsOfWideValues) {
  const std::string_view bytes("\x06\x2c\x01\x04\xff\x01", 6);  // three of 300, two of 511
  RleBitPackedReader reader(bytes, 9);
  for (const std::uint32_t value : {300u, 300u, 300u, 511u, 511u}) EXPECT_EQ(reader.Next(), value);
  EXPECT_THROW(reader.Next(), Error);
}

// A null field of a struct in a list is left out (row_writer.h).
void DropNulls(OrderedJson& value, bool in_list) {
  if (value.is_array()) {
    for (OrderedJson& item : value) DropNulls(item, true);
  }
  if (!value.is_object()) return;
  OrderedJson kept = OrderedJson::object();
  for (auto& [key, item] : value.items()) {
    if (in_list && item.is_null() && key != "content") continue;
    DropNulls(item, in_list);
    kept[key] = item;
  }
  value = kept;
}

// The columns of JSON text in these files are called messages.
void ParseMessages(OrderedJson& row) {
  if (row.contains("messages") && row["messages"].is_string()) {
    row["messages"] = ParseOrderedJson(row["messages"].get<std::string>(), "messages");
  }
}

std::vector<OrderedJson> ExpectedRows(const fs::path& path) {
  std::vector<OrderedJson> rows;
  std::string_view text;
  const std::string content = ReadTextFile(path);
  for (text = content; !text.empty(); text.remove_prefix(text.find('\n') + 1)) {
    rows.push_back(ParseOrderedJson(text.substr(0, text.find('\n')), path.string()));
    DropNulls(rows.back(), false);
    ParseMessages(rows.back());
  }
  return rows;
}

OrderedJson OnlyColumns(const OrderedJson& row, const Json& columns) {
  OrderedJson kept = OrderedJson::object();
  for (const Json& name : columns) kept[name.get<std::string>()] = row.at(name.get<std::string>());
  return kept;
}

// Files with codecs that are refused by name.
bool HasRareCodec(const std::string& file) {
  return file.find("brotli") != file.npos || file.find("lz4") != file.npos ||
         file.starts_with("parquetjs-text");
}

void CheckGood(const fs::path& folder) {
  for (const Json& entry : ReadJsonFile(folder / "cases.json")) {
    const auto file = entry.at("file").get<std::string>();
    SCOPED_TRACE(file);
    const std::string bytes = ReadTextFile(folder / file);
    if (HasRareCodec(file)) {
      ExpectRefused([&] { LinesOfBytes(bytes); }, "which is not supported");
      continue;
    }
    const std::vector<OrderedJson> expected =
        ExpectedRows(folder / entry.at("expected").get<std::string>());
    const std::vector<std::string> lines = LinesOfBytes(bytes);
    ASSERT_EQ(std::ssize(lines), entry.at("rows").get<std::int64_t>());
    ASSERT_EQ(lines.size(), expected.size());
    for (std::size_t r = 0; r < lines.size(); ++r) {
      OrderedJson row = ParseOrderedJson(lines[r], file);
      if (entry.contains("columns")) row = OnlyColumns(row, entry.at("columns"));
      ASSERT_EQ(row, expected[r]) << "row " << r;
    }
  }
}

void CheckBad(const fs::path& folder) {
  for (const Json& entry : ReadJsonFile(folder / "cases.json")) {
    const auto file = entry.at("file").get<std::string>();
    SCOPED_TRACE(file + ": " + entry.at("defect").get<std::string>());
    const std::string bytes = ReadTextFile(folder / file);
    const auto read = [&] { LinesOfBytes(bytes, {.bytes = 1 << 24, .growth = 1000}); };
    if (entry.at("do") == "refuse") {
      ExpectRefused(read, "x.parquet: ");
      continue;
    }
    try {
      read();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
    }
  }
}

TEST(ParquetTest, ReadsWhatWritersMake) { CheckGood(kGoldenParquet / "good"); }

TEST(ParquetTest, RefusesWhatIsBroken) { CheckBad(kGoldenParquet / "bad"); }

// The larger collection that these files are from.
TEST(ParquetTest, ReadsAndRefusesTheWholeCollection) {
  const fs::path folder = SharedFolder() / "golden/parquet";
  if (!fs::exists(folder / "good/cases.json")) GTEST_SKIP() << "no " << folder.string();
  CheckGood(folder / "good");
  CheckBad(folder / "bad");
}

// Whatever a flipped byte does, it must be orderly.
TEST(ParquetTest, SurvivesEveryFlippedByte) {
  for (const char* name : {"arrow-worked-example", "hand-record-over-pages", "hand-zstd-frames",
                           "hand-gzip-members", "duckdb-one-row"}) {
    std::string bytes = ReadTextFile(kGoldenParquet / "good" / (std::string(name) + ".parquet"));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<char>(~bytes[i]);
      try {
        LinesOfBytes(bytes, {.bytes = 1 << 20, .growth = 1000});
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
      }
      bytes[i] = static_cast<char>(~bytes[i]);
    }
  }
}

TEST(ParquetTest, LeavesOutNullFieldsInListsButNotContent) {
  const std::vector<std::string> lines =
      LinesOfBytes(ReadTextFile(kGoldenParquet / "good/arrow-worked-example.parquet"));
  EXPECT_THAT(lines,
              testing::ElementsAre(
                  "{\"messages\": null}\n", "{\"messages\": []}\n",
                  "{\"messages\": [null, {\"role\": \"user\", \"content\": null}, {\"role\": "
                  "\"assistant\", \"content\": \"ok\"}]}\n",
                  "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n"));
}

// A variant is stored in parts, none of which is the value.
TEST(ParquetTest, LeavesOutVariants) {
  const ThriftStruct variant = ThriftStruct().Struct(16, ThriftStruct());
  const std::vector<ThriftStruct> schema = {
      ThriftStruct().Text(4, "root").Int(5, 2),
      ThriftStruct().Int(3, 1).Text(4, "v").Int(5, 2).Struct(10, variant),
      ThriftStruct().Int(1, 6).Int(3, 0).Text(4, "metadata"),
      ThriftStruct().Int(1, 1).Int(3, 1).Text(4, "typed_value"),
      ThriftStruct().Int(1, 6).Int(3, 0).Text(4, "text").Int(6, 0)};
  const std::string bytes = ThriftStruct().List(2, schema).bytes();
  ThriftReader reader(bytes);
  Node root;
  reader.Struct([&](const ThriftField& field) {
    root = ReadSchema(reader, field);
    return true;
  });
  const Node kept = WithoutUnreadable(root);
  ASSERT_EQ(kept.children.size(), 1u);
  EXPECT_EQ(kept.children[0].name, "text");
}

TEST(ParquetTest, ErrorsNameRowColumnAndPage) {
  const std::string bytes = ReadTextFile(kGoldenParquet / "bad/dictionary-index.parquet");
  const Error error = ErrorOf([&] { LinesOfBytes(bytes); });
  EXPECT_THAT(error.what(), HasSubstr("x.parquet: row group 1"));
  EXPECT_THAT(error.what(), HasSubstr("row 3: column 'text', page 2: index 3"));
}

// One row with a list of `elements` zeros in each of `columns` columns, which share one chunk. Runs
// of levels and indices of no bits make the file a few bytes long, whatever `elements` is.
std::string ListsInFewBytes(std::int64_t elements, int columns) {
  const auto page = [](int type, int field, const ThriftStruct& fields, const std::string& body) {
    return ThriftStruct()
               .Int(1, type)
               .Int(2, std::ssize(body))
               .Int(3, std::ssize(body))
               .Struct(field, fields)
               .bytes() +
           body;
  };
  const auto run = [](std::int64_t count, char value) {
    return ThriftStruct::Varint(static_cast<std::uint64_t>(count) * 2) + value;
  };
  const auto levels = [](const std::string& runs) {
    return Fixed32(static_cast<std::uint32_t>(runs.size())) + runs;
  };
  std::string file = "PAR1";
  const std::int64_t begin = std::ssize(file);
  file += page(2, 7, ThriftStruct().Int(1, 1).Int(2, 0), Fixed32(0));
  const std::int64_t data = std::ssize(file);
  const std::string body =
      levels(run(1, 0) + run(elements - 1, 1)) + levels(run(elements, 1)) + '\0';
  file += page(0, 5, ThriftStruct().Int(1, elements).Int(2, 8).Int(3, 3).Int(4, 3), body);
  std::vector<ThriftStruct> schema = {ThriftStruct().Text(4, "root").Int(5, columns)};
  std::vector<ThriftStruct> chunks;
  for (int c = 0; c < columns; ++c) {
    schema.push_back(ThriftStruct().Int(1, 1).Int(3, 2).Text(4, std::string(1, 'a' + c)));
    chunks.push_back(ThriftStruct().Struct(3, ThriftStruct()
                                                  .Int(1, 1)
                                                  .Int(4, 0)
                                                  .Int(5, elements, 6)
                                                  .Int(7, std::ssize(file) - begin, 6)
                                                  .Int(9, data, 6)
                                                  .Int(11, begin, 6)));
  }
  const std::string footer =
      ThriftStruct().List(2, schema).List(4, {ThriftStruct().List(1, chunks).Int(3, 1, 6)}).bytes();
  return file + footer + Fixed32(static_cast<std::uint32_t>(footer.size())) + "PAR1";
}

TEST(ParquetTest, ARowSpendsItsMemoryWhileItGrows) {
  EXPECT_THAT(LinesOfBytes(ListsInFewBytes(3, 1)), testing::ElementsAre("{\"a\": [0, 0, 0]}\n"));
  const std::string bytes = ListsInFewBytes(2'000'000'000, 1);
  EXPECT_LT(bytes.size(), 200u);
  EXPECT_THAT(ErrorOf([&] { LinesOfBytes(bytes); }).what(),
              HasSubstr("column 'a', page 2: a row has more than 1048576 elements of lists"));
  EXPECT_THAT(
      ErrorOf([&] { LinesOfBytes(ListsInFewBytes(100'000, 1), {.memory = 100'000}); }).what(),
      HasSubstr("more than 100000 bytes of memory"));
}

TEST(ParquetTest, RefusesColumnsThatShareBytes) {
  EXPECT_THAT(ErrorOf([] { LinesOfBytes(ListsInFewBytes(3, 2)); }).what(),
              HasSubstr("two columns claim the same bytes of the file, from 4 on"));
}

// Pages and dictionaries of all columns share one budget.
TEST(ParquetTest, PagesAndDictionariesStayWithinTheMemory) {
  for (const char* name : {"arrow-worked-example", "hand-zstd-frames", "duckdb-one-row"}) {
    const std::string bytes =
        ReadTextFile(kGoldenParquet / "good" / (std::string(name) + ".parquet"));
    EXPECT_THAT(ErrorOf([&] { LinesOfBytes(bytes, {.memory = 8}); }).what(),
                HasSubstr("more than 8 bytes of memory"))
        << name;
  }
}

}  // namespace
}  // namespace qlora::parquet
