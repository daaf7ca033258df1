// Conversations and marks as files that `train` reads.
#include "serve/request_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "base/file.h"
#include "io/json.h"
#include "preference/preference_record.h"
#include "qlora/error.h"
#include "serve/api_error.h"
#include "serve/workers.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<Json> LinesOf(const std::filesystem::path& path) {
  std::vector<Json> lines;
  if (!Exists(path)) return lines;
  std::string text = ReadTextFile(path);
  EXPECT_TRUE(text.empty() || text.back() == '\n') << "a line without its end";
  for (std::size_t end; (end = text.find('\n')) != text.npos; text.erase(0, end + 1)) {
    lines.push_back(Json::parse(text.substr(0, end)));
  }
  return lines;
}

int StatusOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const ApiError& error) {
    return error.status;
  }
  return 200;
}

class RequestLogTest : public testing::Test {
 protected:
  RequestLog Make(RequestLogLimits limits = {}) {
    return RequestLog(
        folder.path() / "kept", workers, [this](const std::string& line) { log += line; },
        [this] { return now; }, limits);
  }
  // With what the worker was given.
  std::vector<Json> Lines(const std::string& name) {
    std::promise<void> done;
    workers.Run([&done] { done.set_value(); });
    done.get_future().wait();
    return LinesOf(folder.path() / "kept" / name);
  }
  static OrderedJson Message(const std::string& role, const std::string& content) {
    return {{"role", role}, {"content", content}};
  }

  const LoggedQuestion question = {.messages = OrderedJson::array({Message("user", "Why?")})};
  const std::vector<LoggedAnswer> answers = {
      {.message = Message("assistant", "So.")},
      {.message = Message("assistant", "Beca"), .is_whole = false}};
  TemporaryFolder folder;
  std::string log;
  std::int64_t now = 1795988000;  // 2026-11-29 21:33:20 UTC
  Workers workers{1};
};

// What waits for a disk is bounded; it can be marked all the same.
TEST_F(RequestLogTest, ConversationsOfASlowDiskAreNotKept) {
  RequestLog kept = Make({.answer_bytes = 300});
  std::promise<void> go;
  workers.Run([may_go = go.get_future().share()] { may_go.wait(); });
  for (const char* id : {"a", "b", "c", "d", "e"}) kept.Keep(id, question, answers);
  go.set_value();
  const std::size_t lines = Lines("chats-2026-11-29.jsonl").size();
  EXPECT_GE(lines, 1u);
  EXPECT_LT(lines, 5u);
  EXPECT_THAT(log, HasSubstr("disk is too slow"));
  kept.Keep("f", question, answers);
  EXPECT_EQ(Lines("chats-2026-11-29.jsonl").size(), lines + 1) << "which has room again";
  kept.Mark("f", 0, AnswerMark::kUp, "");
}

TEST_F(RequestLogTest, WholeAnswersAreConversations) {
  RequestLog kept = Make();
  kept.Keep("a", question, answers);
  const Json expected = {{"messages", {Message("user", "Why?"), Message("assistant", "So.")}}};
  EXPECT_THAT(Lines("chats-2026-11-29.jsonl"), ElementsAre(expected));
}

TEST_F(RequestLogTest, MarksAreRecordsOfKto) {
  RequestLog kept = Make();
  kept.Keep("a", question, answers);
  kept.Mark("a", 0, AnswerMark::kUp, "");
  kept.Mark("a", 1, AnswerMark::kDown, "");
  const std::vector<Json> lines = Lines("marks-2026-11-29.jsonl");
  ASSERT_EQ(lines.size(), 2u);
  const Json expected = {{"prompt", {Message("user", "Why?")}},
                         {"completion", {Message("assistant", "So.")}},
                         {"label", true}};
  EXPECT_EQ(lines[0], expected);
  EXPECT_EQ(lines[1]["label"], false);
  const PreferenceRecord record =
      ReadPreferenceRecord(ParseOrderedJson(lines[1].dump(), "the line"));
  EXPECT_EQ(record.label, false);
  EXPECT_EQ(record.answers.size(), 1u);
}

TEST_F(RequestLogTest, CorrectedAnswersAreConversations) {
  LoggedQuestion with_tools = question;
  with_tools.tools = OrderedJson::array({{{"type", "function"}}});
  RequestLog kept = Make();
  kept.Keep("a", with_tools, answers);
  kept.Mark("a", 1, AnswerMark::kEdited, "Because.\n\"So\" \xC3\xA9");
  const std::vector<Json> lines = Lines("edits-2026-11-29.jsonl");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["messages"][1], Json(Message("assistant", "Because.\n\"So\" \xC3\xA9")));
  EXPECT_EQ(lines[0]["tools"], Json(with_tools.tools));
}

TEST_F(RequestLogTest, CorrectedAnswersKeepTheirThoughts) {
  RequestLog kept = Make();
  OrderedJson message = Message("assistant", "So.");
  message["reasoning_content"] = "Hm";
  kept.Keep("a", question, {{.message = message}});
  kept.Mark("a", 0, AnswerMark::kEdited, "Because.");
  message["content"] = "Because.";
  EXPECT_EQ(Lines("edits-2026-11-29.jsonl").at(0)["messages"][1], Json(message));
}

// Behind a message of the assistant, as clients may ask for: no record of KTO.
TEST_F(RequestLogTest, AnAnswerBehindAnAnswerIsNotJudged) {
  RequestLog kept = Make();
  LoggedQuestion goes_on = question;
  goes_on.messages.push_back(Message("assistant", "So"));
  kept.Keep("a", goes_on, answers);
  EXPECT_EQ(StatusOf([&] { kept.Mark("a", 0, AnswerMark::kUp, ""); }), 409);
  kept.Mark("a", 0, AnswerMark::kEdited, "Because.");
  EXPECT_EQ(Lines("edits-2026-11-29.jsonl").size(), 1u);
  EXPECT_TRUE(Lines("marks-2026-11-29.jsonl").empty());
}

TEST_F(RequestLogTest, TextsHaveFilesOfTheirOwn) {
  RequestLog kept = Make();
  const OrderedJson whole = {{"prompt", "One "}, {"completion", "two"}};
  kept.Keep("a", {}, {{.message = whole}, {.message = whole, .is_whole = false}});
  EXPECT_THAT(Lines("texts-2026-11-29.jsonl"), ElementsAre(Json(whole)));
  kept.Mark("a", 1, AnswerMark::kDown, "");
  const Json mark = {{"prompt", "One "}, {"completion", "two"}, {"label", false}};
  EXPECT_THAT(Lines("texts-marks-2026-11-29.jsonl"), ElementsAre(mark));
  kept.Mark("a", 0, AnswerMark::kEdited, "2");
  const Json edit = {{"prompt", "One "}, {"completion", "2"}};
  EXPECT_THAT(Lines("texts-edits-2026-11-29.jsonl"), ElementsAre(edit));
  EXPECT_TRUE(Lines("chats-2026-11-29.jsonl").empty());
}

TEST_F(RequestLogTest, AnAnswerIsJudgedOnce) {
  RequestLog kept = Make();
  kept.Keep("a", question, answers);
  kept.Mark("a", 0, AnswerMark::kUp, "");
  for (const AnswerMark mark : {AnswerMark::kUp, AnswerMark::kDown}) {
    EXPECT_EQ(StatusOf([&] { kept.Mark("a", 0, mark, ""); }), 409);
  }
  kept.Mark("a", 0, AnswerMark::kEdited, "Other");
  EXPECT_EQ(Lines("marks-2026-11-29.jsonl").size(), 1u);
  EXPECT_EQ(StatusOf([&] { kept.Mark("b", 0, AnswerMark::kUp, ""); }), 404);
  EXPECT_EQ(StatusOf([&] { kept.Mark("a", 2, AnswerMark::kUp, ""); }), 404);
}

TEST_F(RequestLogTest, EachDayHasItsFile) {
  RequestLog kept = Make();
  kept.Keep("a", question, answers);
  now += 86400;
  kept.Mark("a", 0, AnswerMark::kUp, "");
  EXPECT_EQ(Lines("marks-2026-11-29.jsonl").size(), 0u);
  EXPECT_EQ(Lines("marks-2026-11-30.jsonl").size(), 1u);
}

TEST_F(RequestLogTest, OldAnswersAreForgotten) {
  RequestLog kept = Make({.answers = 2});
  for (const char* id : {"a", "b", "c"}) kept.Keep(id, question, answers);
  EXPECT_EQ(StatusOf([&] { kept.Mark("a", 0, AnswerMark::kUp, ""); }), 404);
  EXPECT_EQ(StatusOf([&] { kept.Mark("b", 0, AnswerMark::kUp, ""); }), 200);
  RequestLog small = Make({.answer_bytes = 10});
  small.Keep("a", question, answers);
  EXPECT_EQ(StatusOf([&] { small.Mark("a", 0, AnswerMark::kUp, ""); }), 404);
  Lines("chats-2026-11-29.jsonl");  // the workers are done
}

TEST_F(RequestLogTest, AFullFileTakesNoPartOfALine) {
  RequestLog kept = Make({.file_bytes = 100});
  kept.Keep("a", question, answers);
  kept.Keep("b", question, answers);
  EXPECT_EQ(Lines("chats-2026-11-29.jsonl").size(), 1u);
  EXPECT_THAT(log, HasSubstr("is full"));
  kept.Mark("a", 0, AnswerMark::kEdited, "x");
  EXPECT_EQ(StatusOf([&] { kept.Mark("b", 0, AnswerMark::kEdited, std::string(200, 'x')); }), 503);
  EXPECT_EQ(Lines("edits-2026-11-29.jsonl").size(), 1u);
}

TEST_F(RequestLogTest, AMarkThatIsNotWrittenCanBeMadeAgain) {
  RequestLog kept = Make();
  kept.Keep("a", question, answers);
  Lines("chats-2026-11-29.jsonl");
  std::filesystem::remove_all(folder.path() / "kept");
  EXPECT_EQ(StatusOf([&] { kept.Mark("a", 0, AnswerMark::kUp, ""); }), 507);
  MakeDirectories(folder.path() / "kept");
  EXPECT_EQ(StatusOf([&] { kept.Mark("a", 0, AnswerMark::kUp, ""); }), 200);
  EXPECT_EQ(StatusOf([&] { kept.Mark("a", 0, AnswerMark::kUp, ""); }), 409);
}

TEST_F(RequestLogTest, AFolderThatCannotBeIsRefused) {
  WriteTextFile(folder.path() / "kept", "a file");
  EXPECT_THROW(Make(), Error);
}

}  // namespace
}  // namespace qlora
