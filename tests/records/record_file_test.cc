#include "records/record_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "io/json.h"
#include "io/test_util.h"
#include "test_build.h"

namespace qlora {
namespace {

using std::literals::string_literals::operator""s;

RecordFile Open(const std::string& name, const std::string& text) {
  return RecordFile(FileBytes::FromMemory(name, text));
}

std::vector<std::string> Texts(const RecordFile& file) {
  std::vector<std::string> texts;
  for (std::int64_t i = 0; i < file.size(); ++i) texts.push_back(file.Read(i).at("text"));
  return texts;
}

using Strings = std::vector<std::string>;

TEST(RecordFileTest, ReadsJsonLinesWithBomCrlfAndBlankLines) {
  const RecordFile file = Open("d.jsonl",
                               "\xEF\xBB\xBF{\"text\": \"a\"}\r\n\r\n   \n{\"text\":\"b\\n\"}\n"
                               "  {\"text\":\"\xC3\xA9\"}  \n\n{\"text\":\"last\"}");
  EXPECT_EQ(file.file_format(), FileFormat::kJsonLines);
  EXPECT_EQ(Texts(file), (Strings{"a", "b\n", "\xC3\xA9", "last"}));
  EXPECT_EQ(file.Where(0), "d.jsonl:1");
  EXPECT_EQ(file.Where(1), "d.jsonl:4");
  EXPECT_EQ(file.Where(3), "d.jsonl:7");
}

TEST(RecordFileTest, ReadsObjectsOverSeveralLines) {
  const RecordFile file = Open("d.jsonl",
                               "{\n  \"text\": \"a {\",\n  \"x\": [\n {}\n]\n}\n"
                               "{\"text\": \"b\"}\n{\"text\":\n \"c\"}\n");
  EXPECT_EQ(Texts(file), (Strings{"a {", "b", "c"}));
  EXPECT_EQ(file.Where(2), "d.jsonl:8");
  // A broken line takes no other with it.
  const RecordFile broken =
      Open("d.jsonl", "{\"text\": [\n{\"text\": \"b\"}\nx\n{\"text\": \"c\"}");
  ASSERT_EQ(broken.size(), 4);
  EXPECT_EQ(broken.Read(1).at("text"), "b");
  EXPECT_EQ(broken.Read(3).at("text"), "c");
}

TEST(RecordFileTest, ReadsNumbersAsPythonDoes) {
  const RecordFile file =
      Open("d.jsonl", R"({"a": NaN, "b": [-Infinity, 1e999, -1e-999, "NaN"], "c": {"d": )"
                      R"(123456789012345678901234567890}, "text": -9223372036854775809})");
  const OrderedJson record = file.Read(0);
  EXPECT_EQ(record["a"], nullptr);
  EXPECT_EQ(record["b"].dump(), R"([null,null,-0.0,"NaN"])");
  EXPECT_EQ(DigitsOf(record["c"]["d"]), "123456789012345678901234567890");
  EXPECT_EQ(record["text"], "-9223372036854775809");
}

TEST(RecordFileTest, RefusesNumbersThatNoDoubleHolds) {
  RecordFile file = Open("d.jsonl", R"({"a": NaN, "b": "1e999"})"
                                    "\n"
                                    R"({"a": 1e999})");
  file.RefuseWideNumbers();
  EXPECT_EQ(file.Read(0)["a"], nullptr);
  EXPECT_EQ(file.Read(0)["b"], "1e999");
  ExpectRefused([&] { file.Read(1); }, "number overflow parsing '1e999'");
}

TEST(RecordFileTest, KeepsTheOrderOfKeys) {
  const RecordFile file = Open("d.jsonl", R"({"z": 1, "a": 2, "m": 3})");
  EXPECT_EQ(file.Read(0).dump(), R"({"z":1,"a":2,"m":3})");
}

TEST(RecordFileTest, ReadsArraysOverManyLines) {
  const RecordFile file =
      Open("d.json",
           "\n [ {\"text\": \"a ] , [ \\\" }\"},\n{\"text\":\n\"b\", \"x\": [[1], {}]}\n,"
           "{\"text\":\"c\\\\\"}]\n");
  EXPECT_EQ(file.file_format(), FileFormat::kJsonArray);
  EXPECT_EQ(Texts(file), (Strings{"a ] , [ \" }", "b", "c\\"}));
  EXPECT_EQ(file.Where(1), "d.json:3");
  EXPECT_EQ(file.Where(2), "d.json:5");
}

TEST(RecordFileTest, ReadsJsonLinesNamedJson) {
  EXPECT_EQ(Open("d.json", "{\"text\":\"a\"}\n{\"text\":\"b\"}").size(), 2);
}

TEST(RecordFileTest, ReadsCsvAfterRfc4180) {
  const RecordFile file =
      Open("d.csv",
           "\xEF\xBB\xBFtext,note\r\nplain,1\r\n\r\n\"a, \"\"b\"\"\r\nline 2\",\r\n"
           "5\" pipe,\"\"\n");
  EXPECT_EQ(file.file_format(), FileFormat::kCsv);
  EXPECT_EQ(Texts(file), (Strings{"plain", "a, \"b\"\r\nline 2", "5\" pipe"}));
  EXPECT_EQ(file.Read(0).dump(), R"({"text":"plain","note":"1"})");
  EXPECT_EQ(file.Read(2).at("note"), "");
  EXPECT_EQ(file.Where(1), "d.csv:4");
  EXPECT_EQ(file.Where(2), "d.csv:6");
  EXPECT_EQ(Texts(Open("d.tsv", "id\ttext\n1\ta,b\n")), Strings{"a,b"});
  EXPECT_EQ(Texts(Open("d.csv", "text\nno line feed")), Strings{"no line feed"});
}

TEST(RecordFileTest, ReadsCsvAsPandasAndSpreadsheetsWriteIt) {
  const RecordFile numbered = Open("d.csv", "\xEF\xBB\xBF,text\n0,a\n1,b\n");
  EXPECT_EQ(numbered.Read(1).dump(), R"({"text":"b"})");
  EXPECT_EQ(numbered.unnamed_columns(), 1);
  EXPECT_EQ(Open("d.csv", "a,b,c,d,e\nNaN,\"n/a\",None,,nanny\n").Read(0).dump(),
            R"({"a":null,"b":null,"c":null,"d":"","e":"nanny"})");
  EXPECT_EQ(Open("d.csv", "text, note ,,\na,b,,\n").Read(0).dump(), R"({"text":"a","note":"b"})");

  EXPECT_EQ(Texts(Open("d.csv", "text;note\r\n\"a;b\";2,5\r\n")), Strings{"a;b"});
  EXPECT_EQ(Texts(Open("d.csv", "\"text, or; so\"\ttext\n1\tx\n")), Strings{"x"});
  EXPECT_EQ(Texts(Open("d.tsv", "text\ta, b, c\nx\ty\n")), Strings{"x"});
  EXPECT_EQ(Texts(Open("d.tsv", "id,text\n1,x\n")), Strings{"x"});
  EXPECT_EQ(Texts(Open("d.csv", "text\na;b\n")), Strings{"a;b"}) << "the header row decides";
  const RecordFile excel = Open("d.csv", "\xEF\xBB\xBFsep=|\r\nid|text\r\n1|a,b;c\r\n");
  EXPECT_EQ(Texts(excel), Strings{"a,b;c"});
  EXPECT_EQ(excel.Where(0), "d.csv:3");
  EXPECT_EQ(Open("d.csv", "sep=\nx\n").Read(0).dump(), R"({"sep=":"x"})");
  EXPECT_EQ(Open("d.csv", "sep=\r\nx\r\n").Read(0).dump(), R"({"sep=":"x"})");
  EXPECT_EQ(Open("d.csv", "sep=\"\nx\n").Read(0).dump(), R"({"sep=\"":"x"})");
  EXPECT_EQ(Open("d.csv", "sep=||\nx\n").Read(0).dump(), R"({"sep=||":"x"})");
  EXPECT_EQ(Texts(Open("d.csv", "id,text\n,\n1,a\n,\n\n2,b\n,\n")), (Strings{"a", "b"}))
      << "rows of separators alone";
}

// Found without a dialect, by a version that split rows at commas alone.
TEST(RecordFileTest, AnIndexOfOtherRowsOfCsvIsNotUsed) {
  const TemporaryFolder folder;
  std::ofstream(folder / "d.csv") << "text\na\nb\n";
  const FileBytes file(folder / "d.csv");
  IndexArray<std::uint64_t> other(IndexPlace::In(folder / "index", "d.csv", file.key()));
  for (const std::uint64_t offset : {0, 7, 9}) other.Add(offset);
  other.Finish();
  EXPECT_EQ(Texts(RecordFile(file, folder / "index")), (Strings{"a", "b"}));
}

TEST(RecordFileTest, KeepsTheSpellingOfNumbersThatAreTexts) {
  const RecordFile file =
      Open("d.jsonl", R"({"a": 2.50, "b": 2.5, "c": 9, "d": 1e3, "e": true, "f": [1.50]})"
                      "\n"
                      R"({"m": [{"content": "x"}, {"content": 1.10, "weight": 1.00}]})"
                      "\n"
                      R"({"a": 100000000000000000000000})");
  EXPECT_EQ(file.Read(0).dump(), R"({"a":"2.50","b":2.5,"c":9,"d":"1e3","e":true,"f":[1.5]})");
  EXPECT_EQ(file.Read(1).dump(), R"({"m":[{"content":"x"},{"content":"1.10","weight":1.0}]})");
  EXPECT_EQ(file.Read(2).dump(), R"({"a":"100000000000000000000000"})");
}

TEST(RecordFileTest, NamesFileLineAndColumnOfMalformedRecords) {
  const RecordFile lines =
      Open("d.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"b}\n{\"text\": \"c\"}\n");
  EXPECT_EQ(lines.Read(2).at("text"), "c");
  ExpectRefused([&] { lines.Read(1); }, "d.jsonl:3:");
  ExpectRefused([] { Open("d.jsonl", "{\"text\": tru}").Read(0); }, "d.jsonl:1:13: malformed JSON");
  ExpectRefused([] { Open("d.jsonl", "{\n\"text\": 1").Read(0); }, "one whole JSON object");
  ExpectRefused([] { Open("d.jsonl", "[1]\n").Read(0); }, "expected a JSON object, found a number");
  ExpectRefused([] { Open("d.jsonl", "{}\n\"x\"\n").Read(1); },
                "d.jsonl:2:1: expected a JSON object, found a string");
  ExpectRefused([] { Open("d.jsonl", "{\"text\": \"\xFF\"}").Read(0); }, "d.jsonl:1:");
}

TEST(RecordFileTest, RefusesAKeyThatAppearsTwice) {
  ExpectRefused([] { Open("d.jsonl", "{}\n{\"a\": \"x\", \"b\": 1, \"a\": \"y\"}\n").Read(1); },
                "d.jsonl:2: key 'a' appears twice");
  ExpectRefused(
      [] {
        Open("d.json", R"([{"m": [{"role": "user", "content": "x", "content": "y"}]}])").Read(0);
      },
      "key 'content' appears twice");
  EXPECT_NO_THROW(
      Open("d.jsonl", R"({"a": {"b": "{\"c\": 1, \"c\": 2}"}, "b": [{"b": ":"}, {"b": NaN}]})")
          .Read(0));
}

TEST(RecordFileTest, RefusesWhatCannotBeHandledSafely) {
  const std::string deep(90'000, '[');
  ExpectRefused([&] { Open("d.jsonl", "{}\n{\"x\": " + deep).Read(1); },
                "d.jsonl:2:70: malformed JSON: nested more than 64 levels deep");
  EXPECT_NO_THROW(
      Open("d.jsonl", "{\"x\": " + deep.substr(0, 63) + std::string(63, ']') + "}").Read(0));
  ExpectRefused([] { Open("d.jsonl", "{}\n{\"x\": 1}\0{\"x\": 2}"s).Read(1); },
                "d.jsonl:2:9: malformed JSON: a zero byte");
  ExpectRefused([] { Open("d.json", "[{}, \0 {}]"s).Read(1); }, "a zero byte");
  std::string keys;
  for (int i = 0; i < 100'000; ++i) keys += (i > 0 ? ", \"" : "\"") + std::to_string(i) + "\": 0";
  ExpectRefused([&] { Open("d.json", "[{" + keys + "}]").Read(0); }, "more than 10000 keys");
}

TEST(RecordFileTest, ReadsTablesOfManyColumns) {
  std::string names = "text";
  std::string row = "x";
  for (int i = 0; i < 60'000; ++i) {
    names += ",c" + std::to_string(i);
    row += ",";
  }
  const RecordFile file = Open("d.csv", names + "\n" + row + "\n" + row + "\n");
  EXPECT_EQ(Texts(file), (Strings{"x", "x"}));
  EXPECT_EQ(file.Read(1).size(), 60'001U);
}

// A line, a row and an element have the same limits, and those behind them are read.
TEST(RecordFileTest, RecordsHaveALimit) {
  const ReadingLimits limits{64 * 1000};
  const auto open = [&](const std::string& name, const std::string& text) {
    return RecordFile(FileBytes::FromMemory(name, text), {}, limits);
  };
  const auto text = [](std::size_t size) { return std::string(size, 'x'); };
  const auto check = [&](const RecordFile& file) {
    ASSERT_EQ(file.size(), 3);
    EXPECT_EQ(file.Read(0).at("text"), "a");
    ExpectRefused([&] { file.Read(1); }, "the record has more than 1000 bytes");
    ExpectRefused([&] { file.Read(1); }, "raise max_memory, of which it is a 64th");
    EXPECT_EQ(file.Read(2).at("text"), text(980));
  };
  const auto line = [&](std::size_t size) { return R"({"text":")" + text(size) + "\"}"; };
  check(open("d.jsonl", R"({"text":"a"})"
                        "\n" +
                            line(2000) + "\n" + line(980) + "\n"));
  check(open("d.json", R"([{"text":"a"},)" + line(2000) + "," + line(980) + "]"));
  check(open("d.csv", "text\na\n" + text(2000) + "\n" + text(980) + "\n"));
  check(open("d.csv", "text\na\n\"" + std::string(2000, '\n') + "\"\n" + text(980) + "\n"));
  // Blanks of a text count, wherever it is cut, and so does what follows many of them.
  for (const std::string& inner : {std::string(2000, ' '), "x" + std::string(1500, ' ') + "y"}) {
    const std::string blank = R"({"text":")" + inner + "\"}";
    ExpectRefused([&] { open("d.jsonl", blank).Read(0); }, "the record has more than 1000 bytes");
    ExpectRefused([&] { open("d.json", "[" + blank + ",{}]").Read(0); },
                  "the record has more than 1000 bytes");
  }
  // Values count, too: each takes more than its bytes.
  std::string many = R"({"text":"a","ids":[0)";
  for (int i = 0; i < 300; ++i) many += ",0";
  ExpectRefused([&] { open("d.jsonl", many + "]}").Read(0); }, "more than 250 values");
  // Blank lines and rows behind a record are none of it.
  EXPECT_EQ(open("d.jsonl", line(10) + std::string(5000, '\n')).Read(0).at("text"), text(10));
  EXPECT_EQ(open("d.csv", "text\na" + std::string(5000, '\n') + "b").Read(0).at("text"), "a");
  const std::string blanks(200'000, '\n');
  EXPECT_EQ(open("d.json", "[" + line(10) + blanks + "," + blanks + "{}]").Read(0).at("text"),
            text(10));
}

TEST(RecordFileTest, ErrorsQuoteWholeCharacters) {
  const Error error = ErrorOf([] { Open("d.jsonl", "{\"a\": \u00a01}").Read(0); });
  EXPECT_EQ(std::string(error.what()).find('\xc2'), std::string::npos) << error.what();
}

TEST(RecordFileTest, ErrorsQuoteTheBeginningOfLongTexts) {
  const std::string digits(100'000, '7');
  const std::string words = "\"" + std::string(100'000, 'x');
  for (const std::string& value : {words, digits + "q", words + "\n"}) {
    const Error error = ErrorOf([&] { Open("d.json", R"([{"text":)" + value + "}]").Read(0); });
    EXPECT_LT(std::string(error.what()).size(), 400u) << error.what();
  }
}

// Megabytes of blank lines may come first, in each form.
TEST(RecordFileTest, BlankLinesMayComeFirst) {
  for (const std::string& blank : {std::string(1 << 21, '\n'), std::string(5000, '\n')}) {
    EXPECT_EQ(Texts(Open("d.jsonl", blank + R"({"text": "a"})")), Strings{"a"});
    EXPECT_EQ(Texts(Open("d.json", blank + R"([{"text": "a"}])")), Strings{"a"});
    EXPECT_EQ(Texts(Open("d.csv", blank + "text;more\na;b\n")), Strings{"a"});
    EXPECT_EQ(Texts(Open("d.csv", "\xEF\xBB\xBF" + blank + "text;more\na;b\n")), Strings{"a"});
    ExpectRefused([&] { Open("d.jsonl", blank); }, "the data file is empty");
  }
}

TEST(RecordFileTest, RefusesArraysThatDoNotEnd) {
  ExpectRefused([] { Open("d.json", "[{\"text\": \"a\"},\n{\"text\":"); }, "not closed");
  ExpectRefused([] { Open("d.json", "[{},\n]"); }, "d.json:2:1: expected an object, found ']'");
  ExpectRefused([] { Open("d.json", "[,{}]"); }, "found ','");
  ExpectRefused([] { Open("d.json", "[{}]\nx"); }, "d.json:2:1: text follows");
  ExpectRefused([] { Open("d.json", "[{}}]"); }, "d.json:1:4: expected ',' or ']'");
  ExpectRefused([] { Open("d.json", "[\n{}\n{}]").Read(0); }, "d.json:3:1: malformed");
  ExpectRefused([] { Open("d.json", "[]"); }, "holds no records");
}

TEST(RecordFileTest, RefusesBadCsv) {
  ExpectRefused([] { Open("d.csv", "a,b\n1,2\n3\n").Read(1); }, "d.csv:3: expected 2 fields");
  ExpectRefused([] { Open("d.csv", "a\n\"x\" y\n").Read(0); }, "d.csv:2: text follows");
  ExpectRefused([] { Open("d.csv", "a\nb\n\"x\ny\n"); }, "d.csv:3: a quoted field");
  ExpectRefused([] { Open("d.csv", "a,a\n1,2\n"); }, "repeats column 'a'");
  ExpectRefused([] { Open("d.csv", "\"\",\n1,2\n"); }, "d.csv:1: the header row names no column");
  ExpectRefused([] { Open("d.csv", "a,b\r1,2\r"); }, "lines end in CR alone");
  ExpectRefused([] { Open("d.csv", "a,b\n"); }, "holds no records");
}

TEST(RecordFileTest, RefusesForeignFilesWithAdvice) {
  ExpectRefused([] { Open("d.parquet", "PAR1...."); }, "too short for Parquet");
  ExpectRefused([] { Open("d.bin", "PAR1...."); }, "too short for Parquet");
  ExpectRefused([] { Open("d.jsonl.gz", "\x1F\x8B"); }, "decompress it with gunzip");
  // The first bytes decide, whatever the extension says.
  ExpectRefused([] { Open("d.gz", "\x28\xB5\x2F\xFD"); }, "decompress it with unzstd");
  ExpectRefused([] { Open("d.jsonl", "\xFD\x37zXZ"); }, "decompress it with unxz");
  ExpectRefused([] { Open("d.csv", "BZh9"); }, "decompress it with bunzip2");
  ExpectRefused([] { Open("d.csv", "PK\x03\x04 d.jsonl"); }, "extract its files with unzip");
  ExpectRefused([] { Open("d.bin", "PK\x03\x04 [Content_Types].xml"); }, "save it as CSV");
  ExpectRefused([] { Open("d.csv", "PK\x03\x04 xl/workbook.xml"); }, "save it as CSV");
  ExpectRefused([] { Open("d.xlsx", "PK\x03\x04"); }, "save it as CSV");
  ExpectRefused([] { Open("d.jsonl", "\xFF\xFE{"); }, "UTF-16");
  ExpectRefused([] { Open("d.jsonl", " \n\n"); }, "empty");
  ExpectRefused([] { Open("d", "hello"); }, "begins with 'h'");
  ExpectRefused([] { FileBytes("/no/such/file.jsonl"); }, "/no/such/file.jsonl");
  ExpectRefused([] { FileBytes("/"); }, "directory");
  ExpectRefused([] { FileBytes("/dev/null"); }, "not a regular file");
  const TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe.jsonl").c_str(), 0600), 0);
  ExpectRefused([&] { FileBytes(folder / "pipe.jsonl"); }, "not a regular file");
}

TEST(RecordFileTest, NoticesThatTheFileChanged) {
  const TemporaryFolder folder;
  const auto path = folder / "d.jsonl";
  std::ofstream(path) << "{\"text\":\"a\"}\n";
  const RecordFile file{FileBytes(path)};
  EXPECT_EQ(Texts(file), Strings{"a"});
  std::ofstream(path) << "{}";
  ExpectRefused([&] { file.Read(0); }, "changed");
}

// The same records in three containers, larger than the reader's buffer.
TEST(RecordFileTest, ContainersAgreeOnRandomText) {
  std::mt19937 random(1);
  const std::string alphabet = "ab,\"\\\n\r\t []{}:'";
  Strings texts;
  std::string lines;
  std::string array = "[";
  std::string csv = "text,n\n";
  for (int i = 0; i < 4000; ++i) {
    std::string text;
    for (int n = static_cast<int>(random() % 600); n > 0; --n) {
      text += alphabet[random() % alphabet.size()];
    }
    const std::string json = OrderedJson{{"text", text}}.dump();
    lines += json + (i % 7 == 0 ? "\r\n\n" : "\n");
    array += (i == 0 ? "" : i % 3 == 0 ? ",\n" : " , ") + json;
    std::string quoted = "\"";
    for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
    csv += quoted + "\"," + std::to_string(i) + (i % 5 == 0 ? "\r\n" : "\n");
    texts.push_back(std::move(text));
  }
  ASSERT_GT(lines.size(), std::size_t{1} << 20);
  EXPECT_EQ(Texts(Open("d.jsonl", lines)), texts);
  EXPECT_EQ(Texts(Open("d.json", array + "]")), texts);
  EXPECT_EQ(Texts(Open("d.csv", csv)), texts);
}

// Rows of a Parquet file are read in any order, and are named by their numbers.
TEST(RecordFileTest, ReadsParquet) {
  const std::filesystem::path path = SourceDir() / "tests/golden/parquet/good/hand-crc.parquet";
  const TemporaryFolder folder;
  for (const std::filesystem::path& index : {std::filesystem::path(), folder / "index"}) {
    const RecordFile file(FileBytes(path), index);
    EXPECT_EQ(file.file_format(), FileFormat::kParquet);
    ASSERT_EQ(file.size(), 6);
    EXPECT_EQ(file.Read(3).dump(), R"({"text":"alpha"})");
    EXPECT_EQ(file.Read(1).dump(), R"({"text":""})");
    EXPECT_EQ(file.Where(4), path.string() + ":5");
  }
  // The rows as lines and their index, which a second opening finds.
  const auto files = std::distance(std::filesystem::directory_iterator(folder / "index"), {});
  EXPECT_EQ(files, 2);
  EXPECT_EQ(RecordFile(FileBytes(path), folder / "index").size(), 6);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "index"), {}), files);
}

}  // namespace
}  // namespace qlora
