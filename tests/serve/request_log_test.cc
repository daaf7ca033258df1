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
#include "preference/preference_record.h"
#include "serve/api_error.h"
#include "serve/routes/serve_fixture.h"
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

TEST_F(RequestLogTest, AFolderThatCannotBeIsRefused) {
  WriteTextFile(folder.path() / "kept", "a file");
  EXPECT_THROW(Make(), Error);
}

// What clients get, through the routes.
class FeedbackTest : public RoutesTest {
 protected:
  std::string Id(bool streams) {
    const auto reply =
        Post("/v1/chat/completions", {{"messages",
                                       {{{"role", "developer"}, {"content", "Be brief"}},
                                        {{"role", "user"}, {"content", "Hi"}}}},
                                      {"stream", streams}});
    return streams ? Json::parse(reply->events()[0])["id"] : reply->json()["id"];
  }
};

TEST_F(FeedbackTest, NeedsAServerThatKeeps) {
  EXPECT_EQ(Post("/v1/feedback", {{"id", Id(false)}, {"mark", "up"}})->response.status, 404);
}

TEST_F(FeedbackTest, ChatsCanBeMarked) {
  for (const bool streams : {false, true}) {
    TemporaryFolder kept;
    RequestLog request_log(kept.path(), workers_, server_.log, [] { return 0; });
    server_.request_log = &request_log;
    const std::string id = Id(streams);
    EXPECT_EQ(Post("/v1/feedback", {{"id", id}, {"mark", "down"}})->response.status, 200);
    EXPECT_EQ(
        Post("/v1/feedback", {{"id", id}, {"mark", "edited"}, {"edited", "Hey"}})->response.status,
        200);
    const std::vector<Json> marks = LinesOf(kept.path() / "marks-1970-01-01.jsonl");
    ASSERT_EQ(marks.size(), 1u);
    EXPECT_EQ(marks[0]["prompt"][0]["role"], "system");
    EXPECT_EQ(marks[0]["completion"],
              (Json::array({{{"role", "assistant"}, {"content", "Hello you"}}})));
    EXPECT_EQ(LinesOf(kept.path() / "edits-1970-01-01.jsonl").size(), 1u);
    WaitForWorker();
    EXPECT_EQ(LinesOf(kept.path() / "chats-1970-01-01.jsonl").size(), 1u);
    server_.request_log = nullptr;
  }
}

TEST_F(FeedbackTest, WhatWasStoppedCanBeMarked) {
  TemporaryFolder kept;
  RequestLog request_log(kept.path(), workers_, server_.log, [] { return 0; });
  server_.request_log = &request_log;
  service_.cancelled = {0};  // it has pieces, and no end
  const auto reply = Begin("POST", "/v1/chat/completions",
                           R"({"messages": [{"role": "user", "content": "Hi"}], "stream": true})");
  const auto held = service_.waiting;  // as an engine holds what it has not finished
  service_.Write();
  reply->gone();
  const std::string id = Json::parse(reply->events()[0])["id"];
  EXPECT_EQ(Post("/v1/feedback", {{"id", id}, {"mark", "up"}})->response.status, 200);
  WaitForWorker();
  const std::vector<Json> marks = LinesOf(kept.path() / "marks-1970-01-01.jsonl");
  ASSERT_EQ(marks.size(), 1u);
  EXPECT_EQ(marks[0]["completion"][0]["content"], "Hello you");
  EXPECT_TRUE(LinesOf(kept.path() / "chats-1970-01-01.jsonl").empty());
  server_.request_log = nullptr;
}

TEST_F(FeedbackTest, CompletionsCanBeMarked) {
  TemporaryFolder kept;
  RequestLog request_log(kept.path(), workers_, server_.log, [] { return 0; });
  server_.request_log = &request_log;
  const auto reply =
      Post("/v1/completions", {{"prompt", {"One ", "Two "}}, {"echo", true}, {"n", 16}});
  const std::string id = reply->json()["id"];
  EXPECT_EQ(Post("/v1/feedback", {{"id", id}, {"mark", "up"}, {"choice", 31}})->response.status,
            200);
  EXPECT_EQ(Post("/v1/feedback", {{"id", id}, {"mark", "up"}, {"choice", 32}})->response.status,
            404);
  WaitForWorker();
  const std::vector<Json> marks = LinesOf(kept.path() / "texts-marks-1970-01-01.jsonl");
  const Json expected = {{"prompt", "Two "}, {"completion", "Hello you"}, {"label", true}};
  EXPECT_THAT(marks, ElementsAre(expected));
  EXPECT_EQ(LinesOf(kept.path() / "texts-1970-01-01.jsonl").size(), 32u);
  server_.request_log = nullptr;
}

TEST_F(FeedbackTest, WrongFieldsAreNamed) {
  TemporaryFolder kept;
  RequestLog request_log(kept.path(), workers_, server_.log);
  server_.request_log = &request_log;
  const std::string id = Id(false);
  for (const auto& [body, param] : std::vector<std::pair<std::string, std::string>>{
           {R"({"mark": "up"})", "id"},
           {R"({"id": 5, "mark": "up"})", "id"},
           {R"({"id": "x"})", "mark"},
           {R"({"id": "x", "mark": "good"})", "mark"},
           {R"({"id": "x", "mark": "edited"})", "edited"},
           {R"({"id": "x", "mark": "up", "edited": "y"})", "edited"},
           {R"({"id": "x", "mark": "up", "choice": -1})", "choice"}}) {
    const auto reply = Ask("POST", "/v1/feedback", body);
    EXPECT_EQ(reply->response.status, 400) << body;
    EXPECT_EQ(ErrorOf(*reply)["param"], param) << body;
  }
  WaitForWorker();
  server_.request_log = nullptr;
}

}  // namespace
}  // namespace qlora
