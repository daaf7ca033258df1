// POST /v1/feedback: marks of answers that a server keeps.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "serve/request_log.h"
#include "serve/routes/serve_fixture.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

constexpr const char* kPath = "/v1/feedback";

class FeedbackTest : public RoutesTest {
 protected:
  FeedbackTest() { server_.request_log = &kept_; }
  ~FeedbackTest() override { WaitForWorker(); }

  static OrderedJson Chat(bool streams) {
    return {
        {"messages",
         {{{"role", "developer"}, {"content", "Be brief"}}, {{"role", "user"}, {"content", "Hi"}}}},
        {"stream", streams}};
  }
  static std::string IdOf(const FakeReply& stream) {
    return Json::parse(stream.events().at(0))["id"];
  }
  int StatusOf(const OrderedJson& mark) { return Post(kPath, mark)->response.status; }
  // The lines of a file.
  std::vector<Json> Kept(const std::string& kind) {
    WaitForWorker();
    std::vector<Json> lines;
    std::ifstream file(folder_.path() / (kind + "-1970-01-01.jsonl"));
    for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
    return lines;
  }

  TemporaryFolder folder_;
  RequestLog kept_{folder_.path(), workers_, server_.log, [] { return 0; }};
};

TEST_F(FeedbackTest, NeedsAServerThatKeeps) {
  server_.request_log = nullptr;
  EXPECT_EQ(StatusOf({{"id", "x"}, {"mark", "up"}}), 404);
}

TEST_F(FeedbackTest, StreamsCanBeMarked) {
  const std::string id = IdOf(*Post("/v1/chat/completions", Chat(true)));
  EXPECT_EQ(StatusOf({{"id", id}, {"mark", "down"}}), 200);
  EXPECT_EQ(StatusOf({{"id", id}, {"mark", "edited"}, {"edited", "Hey"}}), 200);
  const std::vector<Json> marks = Kept("marks");
  ASSERT_EQ(marks.size(), 1u);
  EXPECT_EQ(marks[0]["prompt"][0]["role"], "system");
  EXPECT_EQ(marks[0]["completion"],
            (Json::array({{{"role", "assistant"}, {"content", "Hello you"}}})));
  EXPECT_EQ(Kept("edits").size(), 1u);
  EXPECT_EQ(Kept("chats").size(), 1u);
}

TEST_F(FeedbackTest, WhatWasStoppedCanBeMarked) {
  service_.cancelled = {0};  // it has pieces, and no end
  const auto reply = Begin("POST", "/v1/chat/completions", Chat(true).dump());
  const auto held = service_.waiting;  // as an engine holds what it has not finished
  service_.Write();
  reply->gone();
  EXPECT_EQ(StatusOf({{"id", IdOf(*reply)}, {"mark", "up"}}), 200);
  const std::vector<Json> marks = Kept("marks");
  ASSERT_EQ(marks.size(), 1u);
  EXPECT_EQ(marks[0]["completion"][0]["content"], "Hello you");
  EXPECT_TRUE(Kept("chats").empty());
}

TEST_F(FeedbackTest, CompletionsCanBeMarked) {
  const auto reply =
      Post("/v1/completions", {{"prompt", {"One ", "Two "}}, {"echo", true}, {"n", 16}});
  const OrderedJson id = reply->json()["id"];
  EXPECT_EQ(StatusOf({{"id", id}, {"mark", "up"}, {"choice", 31}}), 200);
  EXPECT_EQ(StatusOf({{"id", id}, {"mark", "up"}, {"choice", 32}}), 404);
  const Json expected = {{"prompt", "Two "}, {"completion", "Hello you"}, {"label", true}};
  EXPECT_EQ(Kept("texts-marks"), std::vector<Json>{expected});
  EXPECT_EQ(Kept("texts").size(), 32u);
}

TEST_F(FeedbackTest, WrongFieldsAreNamed) {
  for (const auto& [body, param] : std::vector<std::pair<std::string, std::string>>{
           {R"({"mark": "up"})", "id"},
           {R"({"id": 5, "mark": "up"})", "id"},
           {R"({"id": "x"})", "mark"},
           {R"({"id": "x", "mark": "good"})", "mark"},
           {R"({"id": "x", "mark": "edited"})", "edited"},
           {R"({"id": "x", "mark": "up", "edited": "y"})", "edited"},
           {R"({"id": "x", "mark": "up", "choice": -1})", "choice"}}) {
    const auto reply = Ask("POST", kPath, body);
    EXPECT_EQ(reply->response.status, 400) << body;
    EXPECT_EQ(ErrorOf(*reply)["param"], param) << body;
  }
}

}  // namespace
}  // namespace qlora
