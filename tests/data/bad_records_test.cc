// Records that cannot be read or laid out.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>

#include "data/data_test_util.h"
#include "prompt/chat_template_load.h"

namespace qlora {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kLines =
    "{\"prompt\": \"a\", \"completion\": \"b\"\n"           // cut
    "{\"prompt\": \"a\", \"completion\": \"b \\ud83d\"}\n"  // half of a character
    "{\"prompt\": \"c\", \"completion\": \"d\"}\n"
    "{\"prompt\": \"e\", \"completion\": null}\n"
    "{\"prompt\": [\"f\"], \"completion\": {\"g\": 1}}\n"
    "[\"prompt\", \"completion\"]\n"
    "{\"prompt\": \"h\", \"completion\": \"i\"}\n";

class BadRecordsTest : public testing::Test {
 protected:
  Dataset Open(const DataOptions& options) { return Dataset::Open(options, tokenizer_, nullptr); }
  DataOptions Dropping(const std::string& name, const std::string& text) {
    DataOptions options = folder_.With(name, text);
    options.bad_records = BadRecords::kDrop;
    return options;
  }

  const Tokenizer tokenizer_ = MakeTestTokenizer();
  DataFolder folder_;
};

TEST_F(BadRecordsTest, TheErrorCountsThemAndShowsEachReason) {
  const DataOptions options = folder_.With("d.jsonl", kLines);
  const std::string message = ErrorOf([&] { Open(options); }).what();
  EXPECT_THAT(message, AllOf(HasSubstr("d.jsonl:1:"), HasSubstr("\n"), HasSubstr("d.jsonl:2:"),
                             HasSubstr("d.jsonl:4:"), HasSubstr("d.jsonl:5:"),
                             HasSubstr("d.jsonl:6:"), Not(HasSubstr("d.jsonl:7:"))));
  EXPECT_THAT(message, HasSubstr("d.jsonl: 5 of 7 records cannot be read;"));
  EXPECT_THAT(message, EndsWith("cannot be read; to train on the others: bad_records drop"));
  ExpectRefused([&] { Open(folder_.With("d.jsonl", "{\"text\": {}}\n{\"text\": []}\n")); },
                "d.jsonl: 2 of 2 records cannot be read");
}

// Of many with one reason the first are shown, and each with another reason, but no long list.
TEST_F(BadRecordsTest, OtherReasonsAreNotHiddenByMany) {
  std::string lines;
  for (int i = 0; i < 20; ++i)
    lines += R"({"text": null})"
             "\n";
  lines += "[5]\n{\"text\": \"kept\"}\n";
  const DataReport report = Open(Dropping("d.jsonl", lines)).report();
  EXPECT_THAT(report.bad_reasons, ElementsAre(HasSubstr("d.jsonl:1:"), HasSubstr("d.jsonl:2:"),
                                              HasSubstr("d.jsonl:3:"), HasSubstr("d.jsonl:21:")));
  EXPECT_THAT(RenderReport(report), HasSubstr("\n  and 17 more\n"));
  ExpectRefused([&] { Open(folder_.With("d.jsonl", lines)); },
                "21 of 22 records cannot be read, of which 4 are shown; to train on the others");
  lines.clear();
  for (int i = 0; i < 30; ++i) lines += fmt::format("{{\"text\": {0}, \"{0}{0}\n", i);
  lines += "{\"text\": \"kept\"}\n";
  EXPECT_EQ(Open(Dropping("e.jsonl", lines)).report().bad_reasons.size(), 10u);
}

TEST_F(BadRecordsTest, TheyAreDroppedAndCountedOnRequest) {
  const Dataset data = Open(Dropping("d.jsonl", kLines));
  ASSERT_EQ(data.size(), 2);
  EXPECT_TRUE(data.Where(1).ends_with("d.jsonl:7"));
  const DataReport& report = data.report();
  EXPECT_EQ(report.dropped_bad, 5);
  EXPECT_THAT(report.bad_reasons,
              ElementsAre(HasSubstr("d.jsonl:1:"), HasSubstr("d.jsonl:2:"), HasSubstr("d.jsonl:4:"),
                          HasSubstr("d.jsonl:5:"), HasSubstr("d.jsonl:6:")));
  EXPECT_THAT(RenderReport(report), AllOf(HasSubstr("2 of 7 records kept"),
                                          HasSubstr("records dropped, they cannot be read: 5\n"),
                                          HasSubstr("d.jsonl:4: field 'completion'")));
  EXPECT_THAT(WarnOfLostRecords(report), HasSubstr("5 are dropped as unreadable"));
  EXPECT_EQ(ReportToJson(report).at("dropped_bad"), 5);
}

TEST_F(BadRecordsTest, EveryContainerMayHaveThem) {
  EXPECT_EQ(Open(Dropping("d.json", R"([{"text": "a"}, {"text": tru}, 5, {"text": "b"}])")).size(),
            2);
  EXPECT_EQ(Open(Dropping("d.csv", "text,n\na,1\nb\n\"c\" x,2\nd,3,4\ne,5\n")).size(), 2);
}

TEST_F(BadRecordsTest, ATemplateThatRaisesRefusesARecord) {
  const Tokenizer chatty = MakeTestTokenizer(
      {.chat_template = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) "
                        "%}{{ raise_exception('roles must alternate') }}{% endif %}"
                        "<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"});
  const auto chat = LoadChatTemplate({}, chatty, ChatClock::kFixed);
  const std::string question = R"({"role": "user", "content": "Q"})";
  const std::string answer = R"({"role": "assistant", "content": "A"})";
  const auto line = [](const std::string& a, const std::string& b) {
    return "{\"messages\": [" + a + ", " + b + "]}\n";
  };
  const Dataset data = Dataset::Open(
      Dropping("d.jsonl", line(question, question) + line(question, answer)), chatty, chat.get());
  EXPECT_EQ(data.size(), 1);
  EXPECT_THAT(data.report().bad_reasons, ElementsAre(HasSubstr("roles must alternate")));
}

TEST_F(BadRecordsTest, AnIndexOnDiskRemembersThem) {
  const TemporaryFolder index;
  DataOptions options = Dropping("d.jsonl", kLines);
  options.index_folder = index.path();
  const DataReport first = Open(options).report();
  EXPECT_EQ(ReportToJson(Open(options).report()), ReportToJson(first));
  EXPECT_EQ(Open(options).report().bad_reasons, first.bad_reasons);
  options.bad_records = BadRecords::kError;
  ExpectRefused([&] { Open(options); }, "5 of 7 records");
}

TEST_F(BadRecordsTest, NoRecordAtAllIsAnError) {
  ExpectRefused([&] { Open(Dropping("d.jsonl", "{\n{\n")); }, "d.jsonl:1:");
  ExpectRefused([&] { Open(Dropping("d.jsonl", "{\"text\": {}}\n{\"text\": \"\"}\n")); },
                "2 cannot be read, the first: ");
  ExpectRefused(
      [&] { Open(Dropping("d.jsonl", "{\"input_ids\": [\"a\"]}\n{\"input_ids\": [5]}\n")); },
      "the first at ");
}

// The bytes that this process has read by system calls so far; -1 where that is not counted.
std::int64_t BytesRead() {
  std::ifstream io("/proc/self/io");
  std::string name;
  std::int64_t bytes = -1;
  io >> name >> bytes;
  return bytes;
}

// Many bad records behind many good ones: ten times the file is read ten times as far, not a
// hundred times.
TEST_F(BadRecordsTest, ManyTakeNoWalkEach) {
  if (BytesRead() < 0) GTEST_SKIP() << "this system does not count what is read";
  const auto read_for = [&](int count) {
    std::string lines;
    for (int i = 0; i < 4 * count; ++i)
      lines += R"({"text": "xyxyxyxyxyxyxyxyxyxyxyxy"})"
               "\n";
    for (int i = 0; i < count; ++i) lines += i % 2 == 0 ? "{\"text\": \"\"}\n" : "{\n";
    const DataOptions options = Dropping("d.jsonl", lines);
    const std::int64_t before = BytesRead();
    EXPECT_EQ(Open(options).report().dropped_bad, count);
    return BytesRead() - before;
  };
  const std::int64_t few = read_for(500);
  // A place is counted within 16 KiB, which the smaller file does not fill.
  EXPECT_LT(read_for(5000), 10 * few + 5000 * (std::int64_t{1} << 14));
}

}  // namespace
}  // namespace qlora
