// What requests and their answers hold is counted, until their clients have it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "base/text.h"
#include "serve/request_log.h"
#include "serve/request_room.h"
#include "serve/routes/route_test_util.h"

namespace qlora {
namespace {

using testing::HasSubstr;

class HeldBytesTest : public RoutesTest {
 protected:
  // What a request holds while it waits.
  std::size_t HeldOf(const std::string& path, const OrderedJson& body) {
    const auto reply = Begin("POST", path, body.dump());
    EXPECT_FALSE(reply->ended) << reply->body;
    const std::size_t held = room_->held;
    service_.Write();
    EXPECT_EQ(reply->response.status, 200) << reply->body;
    EXPECT_EQ(room_->held, 0u) << path;
    service_.requests.clear();
    return held;
  }

  const std::shared_ptr<RequestRoom> room_ = models_.Find("")->room;
};

OrderedJson Ids(int count) { return OrderedJson(std::vector<int>(count, 5)); }

TEST_F(HeldBytesTest, AnswersHoldTheirPromptOnce) {
  const auto held = [&](int ids, int n) {
    return HeldOf("/v1/completions", {{"prompt", Ids(ids)}, {"n", n}});
  };
  // Its tokens, and its text.
  EXPECT_GE(held(120, 1), held(20, 1) + 100 * sizeof(std::int32_t));
  EXPECT_EQ(held(120, 2) - held(120, 1), held(20, 2) - held(20, 1));
}

TEST_F(HeldBytesTest, LogprobsOfAPromptAreCountedAtItsBeginning) {
  const auto held = [&](const char* field, int ids, int top, bool streams) {
    return HeldOf("/v1/completions",
                  {{"prompt", Ids(ids)}, {field, true}, {"logprobs", top}, {"stream", streams}});
  };
  for (const bool streams : {false, true}) {
    EXPECT_GE(held("echo", 120, 0, streams), held("none", 120, 0, streams) + 120 * 2 * 96);
    EXPECT_GE(held("echo", 120, 20, streams),
              held("echo", 120, 0, streams) + 120 * 20 * 2 * sizeof(TokenLogprob));
  }
  const OrderedJson body = {{"prompt", Ids(120)}, {"echo", true}, {"logprobs", 20}};
  HeldBytes one(room_), two(room_);
  one.Add(room_->most / 2, "", "");
  two.Add(room_->most / 2 - 40'000, "", "");
  EXPECT_EQ(Post("/v1/completions", body)->response.status, 429);
  EXPECT_TRUE(service_.requests.empty());
  EXPECT_EQ(Post("/v1/completions", {{"prompt", Ids(120)}})->response.status, 200);
}

// In parts, of which each is the rest of the one before.
TEST_F(HeldBytesTest, LogprobsOfALongPromptAreWhole) {
  std::vector<AnswerToken> tokens;
  for (int i = 0; i < 600; ++i) tokens.push_back({.token = 5, .bytes = "a", .logprob = -1.0 * i});
  service_.pieces = {{.text = "b", .tokens = {{.bytes = "b"}}, .prompt = tokens}};
  const OrderedJson body = {{"prompt", "a"}, {"echo", true}, {"logprobs", 0}};
  const Json logprobs = Post("/v1/completions", body)->json()["choices"][0]["logprobs"];
  for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    ASSERT_EQ(logprobs[list].size(), 601u) << list;
  }
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  for (int i = 1; i < 600; ++i) EXPECT_EQ(logprobs["token_logprobs"][i], -1.0 * i);
}

TEST_F(HeldBytesTest, FieldsThatAResponseRepeats) {
  const auto held = [&](std::size_t bytes, bool streams) {
    return HeldOf("/v1/responses", {{"input", "a"},
                                    {"instructions", ""},
                                    {"user", std::string(bytes, 'x')},
                                    {"stream", streams}});
  };
  EXPECT_GE(held(10'000, false), held(0, false) + 10'000);
  // Two events have all of them at once.
  EXPECT_GE(held(10'000, true), held(0, true) + 3 * 10'000);
  const auto reply =
      Begin("POST", "/v1/responses", OrderedJson({{"input", "a"}, {"stream", true}}).dump());
  EXPECT_GE(reply->response.room.bytes, reply->body.size() / 2);
  service_.Write();
  OrderedJson pairs;
  for (int i = 0; i < 17; ++i) pairs[std::to_string(i)] = "a";
  for (const OrderedJson& metadata :
       {pairs, OrderedJson({{"a", 1}}), OrderedJson::array({1}), OrderedJson("a"),
        OrderedJson({{std::string(65, 'k'), "a"}}), OrderedJson({{"k", std::string(513, 'a')}})}) {
    const auto refused = Post("/v1/responses", {{"input", "a"}, {"metadata", metadata}});
    EXPECT_EQ(refused->response.status, 400) << metadata;
    EXPECT_THAT(ErrorOf(*refused)["param"].get<std::string>(), testing::StartsWith("metadata"));
  }
  EXPECT_EQ(ErrorOf(*Post("/v1/responses", {{"input", "a"}, {"user", 5}}))["param"], "user");
  pairs.erase("16");
  EXPECT_EQ(Post("/v1/responses", {{"input", "a"}, {"metadata", pairs}})->json()["metadata"],
            pairs);
}

// Also what is sent, until the client has taken it.
TEST_F(HeldBytesTest, TextsOfAnswersCountUntilTheyAreWritten) {
  service_.pieces = {{.text = std::string(50'000, 'x')}};
  const OrderedJson chat = {
      {"messages", {{{"role", "user"}, {"content", "a"}}}}, {"model", "tiny"}, {"max_tokens", 9}};
  const std::vector<std::pair<std::string, OrderedJson>> requests = {
      {"/v1/completions", {{"prompt", "a"}}},
      {"/v1/chat/completions", chat},
      {"/v1/messages", chat},
      {"/v1/responses", {{"input", "a"}}}};
  for (const auto& [path, body] : requests) {
    for (const bool streams : {false, true}) {
      OrderedJson asked = body;
      asked["stream"] = streams;
      auto reply = std::make_shared<FakeReply>();
      reply->reads = false;
      Begin({.method = "POST", .path = path, .body = asked.dump()}, reply);
      service_.Write();
      EXPECT_EQ(reply->response.status, 200) << path << reply->body;
      EXPECT_TRUE(reply->ended);
      service_.requests.clear();
      if (!streams) {
        EXPECT_GE(room_->held, reply->body.size()) << path;
      }
      reply.reset();
      EXPECT_EQ(room_->held, 0u) << path;
    }
  }
  // An answer ends where there is no room for more of it.
  HeldBytes one(room_), two(room_);
  one.Add(room_->most / 2, "", "");
  two.Add(room_->most / 2 - 100'000, "", "");
  for (const auto& [path, body] : requests) {
    EXPECT_EQ(Post(path, body)->response.status, 429) << path;
  }
}

TEST_F(HeldBytesTest, ConversationsThatAreKept) {
  const OrderedJson messages = {
      {"messages", {{{"role", "user"}, {"content", std::string(100, 'x')}}}},
      {"model", "tiny"},
      {"max_tokens", 9}};
  OrderedJson chat = messages;
  chat["chat_template_kwargs"] = {{"other", std::string(10'000, 'x')}};
  const std::size_t of_messages = HeldOf("/v1/messages", messages);
  const std::size_t of_chat = HeldOf("/v1/chat/completions", chat);
  const TemporaryFolder folder;
  RequestLog log(folder.path(), workers_, server_.log, [] { return 0; });
  server_.request_log = &log;
  EXPECT_GE(HeldOf("/v1/messages", messages), of_messages + 100);
  EXPECT_GE(HeldOf("/v1/chat/completions", chat), of_chat + 10'100);
  WaitForWorker();
  server_.request_log = nullptr;
}

// The types that tools say are read once for all answers.
using HeldToolsTest = TalkerTest;
TEST_F(HeldToolsTest, ToolsAreHeldOnce) {
  const std::shared_ptr<RequestRoom> room = models_.Find("")->room;
  OrderedJson properties;
  for (int i = 0; i < 100; ++i) properties[std::to_string(i)] = {{"type", "string"}};
  const OrderedJson tool = {
      {"type", "function"},
      {"function",
       {{"name", "f"}, {"parameters", {{"type", "object"}, {"properties", properties}}}}}};
  const auto held = [&](int n, bool has_tools) {
    OrderedJson body = {{"messages", {{{"role", "user"}, {"content", "a"}}}}, {"n", n}};
    if (has_tools) body["tools"] = OrderedJson::array({tool});
    Ask("/v1/chat/completions", body);
    const std::size_t bytes = room->held;
    service_.waiting.clear();
    service_.requests.clear();
    return bytes;
  };
  EXPECT_GE(held(1, true), held(1, false) + 100 * 2 * 80);
  EXPECT_EQ(held(8, true) - held(1, true), held(8, false) - held(1, false));
}

}  // namespace
}  // namespace qlora
