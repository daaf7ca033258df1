// POST /v1/completions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/routes/serve_fixture.h"

namespace qlora {
namespace {

using testing::ElementsAre;

constexpr const char* kPath = "/v1/completions";

using CompletionRouteTest = RoutesTest;

TEST_F(CompletionRouteTest, ContinuesATextAsItIs) {
  const auto reply = Post(kPath, {{"prompt", "Hi"}});
  ASSERT_EQ(reply->response.status, 200) << reply->body;
  const Json json = reply->json();
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["choices"], Json::array({{{"index", 0},
                                           {"text", "Hello you"},
                                           {"logprobs", nullptr},
                                           {"finish_reason", "stop"}}}));
  EXPECT_EQ(service_.requests[0].options.max_new_tokens, 16);
  EXPECT_EQ(service_.requests[0].prompt.front(), 1) << "BOS, as the tokenizer adds it";
  EXPECT_FALSE(service_.requests[0].top_logprobs);
}

TEST_F(CompletionRouteTest, PromptsAreTextsOrIds) {
  const Json json = Ask("POST", kPath, R"({"prompt": ["a", "b"], "n": 2})")->json();
  ASSERT_EQ(json["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(json["choices"][i]["index"], i);
  ASSERT_EQ(service_.requests.size(), 4u);
  EXPECT_EQ(service_.requests[0].prompt, service_.requests[1].prompt);
  EXPECT_NE(service_.requests[1].prompt, service_.requests[2].prompt);
  // Each prompt once.
  EXPECT_EQ(json["usage"]["prompt_tokens"],
            service_.requests[0].prompt.size() + service_.requests[2].prompt.size());
  EXPECT_EQ(json["usage"]["completion_tokens"], 12);
  service_.requests.clear();
  Ask("POST", kPath, R"({"prompt": [5, 6]})");
  Ask("POST", kPath, R"({"prompt": [[5, 6], [7]]})");
  ASSERT_EQ(service_.requests.size(), 3u);
  EXPECT_THAT(service_.requests[0].prompt, ElementsAre(5, 6));
  EXPECT_THAT(service_.requests[2].prompt, ElementsAre(7));
  Ask("POST", kPath, R"({"prompt": ""})");
  EXPECT_THAT(service_.requests.back().prompt, ElementsAre(1));
}

TEST_F(CompletionRouteTest, WrongFieldsAreNamed) {
  std::string many = "[\"a\"";
  for (int i = 0; i < 64; ++i) many += ",\"a\"";
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"prompt", "5"},         {"prompt", "{}"},         {"prompt", "[]"},
      {"prompt", "[288]"},     {"prompt", "[1.5]"},      {"prompt", "[null]"},
      {"prompt", "[[]]"},      {"n_predict", "5"},       {"add_special_tokens", "false"},
      {"prompt", "[[1], 5]"},  {"prompt", many + "]"},   {"prompt", "[\"a\", true]"},
      {"suffix", "\"x\""},     {"best_of", "2"},         {"best_of", "\"x\""},
      {"echo", "1"},           {"logprobs", "21"},       {"logprobs", "-1"},
      {"logprobs", "true"},    {"max_tokens", "0"},      {"n", "17"},
      {"stream", "1"},         {"temperature", "\"x\""}, {"stop", "[5]"},
      {"stream_options", "5"}, {"images", "[\"AA==\"]"}, {"input", "\"x\""},
      {"messages", "[{}]"},    {"tools", "[{}]"},        {"conversation", "\"x\""}};
  for (const auto& [name, value] : wrong) {
    const std::string prompt = name == "prompt" ? "" : "\"prompt\": \"a\", ";
    const auto reply = Ask("POST", kPath, "{" + prompt + "\"" + name + "\": " + value + "}");
    EXPECT_EQ(reply->response.status, 400) << name << " = " << value.substr(0, 40);
    const Json param = ErrorOf(*reply)["param"];
    EXPECT_TRUE(param.is_string() && param.get<std::string>().starts_with(name)) << name << value;
  }
  EXPECT_EQ(Ask("POST", kPath, "{}")->response.status, 400);
  EXPECT_EQ(Ask("POST", kPath, R"({"prompt": "a", "suffix": null, "best_of": 1, "echo": null})")
                ->response.status,
            200);
}

std::string IdList(int count) {
  std::string ids = "[1";
  for (int i = 1; i < count; ++i) ids += ",1";
  return ids + "]";
}

TEST_F(CompletionRouteTest, PromptsBeyondTheContextAreRefusedUnread) {
  const std::string text = "\"" + std::string(400, 'x') + "\"";
  const std::string longer = "\"" + std::string(1 << 20, 'x') + "\"";
  for (const auto& [prompt, param] : std::vector<std::pair<std::string, std::string>>{
           {IdList(128), "prompt"},
           {"[" + IdList(5) + "," + IdList(128) + "]", "prompt[1]"},
           {text, "prompt"},
           {"[\"a\", \"b\", " + text + "]", "prompt[2]"},
           {longer, "prompt"},
           {"[\"a\", " + longer + "]", "prompt[1]"}}) {
    const auto reply = Ask("POST", kPath, R"({"n": 16, "prompt": )" + prompt + "}");
    EXPECT_EQ(reply->response.status, 400) << prompt.substr(0, 40);
    EXPECT_EQ(ErrorOf(*reply)["code"], "context_length_exceeded") << prompt.substr(0, 40);
    EXPECT_EQ(ErrorOf(*reply)["param"], param) << prompt.substr(0, 40);
  }
  EXPECT_TRUE(service_.requests.empty());
  EXPECT_EQ(Ask("POST", kPath, R"({"prompt": )" + IdList(127) + "}")->response.status, 200);
}

TEST_F(CompletionRouteTest, AnswersShareTheirPrompt) {
  Ask("POST", kPath, R"({"prompt": ["a", "b"], "n": 2})");
  ASSERT_EQ(service_.requests.size(), 4u);
  EXPECT_EQ(service_.requests[0].prompt.begin(), service_.requests[1].prompt.begin());
  EXPECT_NE(&*service_.requests[1].prompt.begin(), &*service_.requests[2].prompt.begin());
}

// No wait would make room for them, so 429 would have clients try for ever.
TEST_F(CompletionRouteTest, MoreAnswersThanEverFitAreRefusedForGood) {
  OrderedJson prompts = OrderedJson::array();
  for (int i = 0; i < 64; ++i) prompts.push_back("a");
  const auto reply = Post(kPath, {{"prompt", prompts}, {"n", 5}});
  EXPECT_EQ(reply->response.status, 400);
  const Json error = ErrorOf(*reply);
  EXPECT_EQ(error["param"], "n");
  EXPECT_THAT(error["message"].get<std::string>(),
              AllOf(testing::HasSubstr("320 answers"), testing::HasSubstr("room for 272")));
  EXPECT_TRUE(service_.requests.empty());
  EXPECT_EQ(Post(kPath, {{"prompt", prompts}, {"n", 4}})->response.status, 200);
  service_.most = 2;
  EXPECT_EQ(ErrorOf(*Post(kPath, {{"prompt", {"a", "b", "c"}}}))["param"], "prompt");
  EXPECT_THAT(
      ErrorOf(*Post(kPath, {{"prompt", {"a", "b", "c"}}, {"n", 16}}))["message"].get<std::string>(),
      testing::HasSubstr("3 prompts with n = 16 are 48 answers"));
  EXPECT_EQ(
      ErrorOf(*Post("/v1/chat/completions",
                    {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"n", 3}}))["param"],
      "n");
}

TEST_F(CompletionRouteTest, EchoAndLogprobsInTheirOwnForm) {
  service_.pieces = {
      {.text = "H",
       .tokens = {{.token = 9, .bytes = "H", .logprob = -0.5, .top = {{9, -0.5}, {10, -2}}}},
       .prompt = {{.token = 5, .bytes = "\xC3\xA9"},
                  {.token = 6, .bytes = "\xF0", .logprob = -1, .top = {{6, -1}}}}}};
  for (const char* stream : {"false", "true"}) {
    const auto reply = Ask("POST", kPath,
                           std::string(R"({"prompt": "\u00e9", "echo": true,
                             "logprobs": 2, "stream": )") +
                               stream + "}");
    EXPECT_TRUE(service_.requests.back().wants_prompt_logprobs);
    std::vector<Json> choices;
    if (std::string(stream) == "true") {
      for (const std::string& event : reply->events()) {
        if (event != "[DONE]") choices.push_back(Json::parse(event)["choices"][0]);
      }
    } else {
      choices.push_back(reply->json()["choices"][0]);
    }
    std::string text;
    Json all = {{"tokens", Json::array()},
                {"token_logprobs", Json::array()},
                {"top_logprobs", Json::array()},
                {"text_offset", Json::array()}};
    for (const Json& choice : choices) {
      text += choice["text"].get<std::string>();
      if (choice["logprobs"].is_null()) continue;
      for (auto& [name, list] : all.items()) {
        for (const Json& value : choice["logprobs"][name]) list.push_back(value);
      }
    }
    EXPECT_EQ(text, "\u00e9H");
    EXPECT_EQ(all["tokens"], Json::array({"\u00e9", "bytes:\\xf0", "H"}));
    EXPECT_EQ(all["token_logprobs"], Json::array({nullptr, -1.0, -0.5}));
    EXPECT_EQ(all["text_offset"], Json::array({0, 1, 2}));
    EXPECT_TRUE(all["top_logprobs"][0].is_null());
    EXPECT_EQ(all["top_logprobs"][2].size(), 2u);
  }
}

// What the tokenizer adds to a prompt, and the end of the answer, are tokens that the text lacks.
TEST_F(CompletionRouteTest, OffsetsAreThoseOfTheText) {
  service_.pieces = {
      {.text = " you",
       .tokens = {{.token = 9, .bytes = " you", .characters = 4}, {.token = 2, .bytes = "</s>"}},
       .prompt = {{.token = 1, .bytes = "<s>"},
                  {.token = 5, .bytes = " Hi"},
                  {.token = 6, .bytes = " all"}}}};
  const auto reply = Post(kPath, {{"prompt", "Hi all"}, {"echo", true}, {"logprobs", 0}});
  const Json choice = reply->json()["choices"][0];
  EXPECT_EQ(choice["text"], "Hi all you");
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json::array({0, 0, 2, 6, 10}));
}

TEST_F(CompletionRouteTest, TheDrawnTokenIsAmongTheLikeliest) {
  service_.pieces = {
      {.text = "a", .tokens = {{.token = 9, .bytes = "a", .logprob = -3, .top = {{5, -1}}}}}};
  const auto reply = Post(kPath, {{"prompt", "x"}, {"logprobs", 1}});
  const Json top = reply->json()["choices"][0]["logprobs"]["top_logprobs"][0];
  EXPECT_EQ(top.size(), 2u);
  EXPECT_EQ(top["a"], -3.0);
  service_.pieces[0].tokens[0].top = {};
  const auto other = Post(kPath, {{"prompt", "x"}, {"logprobs", 0}});
  const Json alone = other->json()["choices"][0]["logprobs"]["top_logprobs"][0];
  EXPECT_EQ(alone.size(), 1u);
  EXPECT_EQ(alone["a"], -3.0);
}

TEST_F(CompletionRouteTest, APromptIsScoredWithoutAnAnswer) {
  service_.pieces = {{.prompt = {{.token = 5, .bytes = "x"}}}};
  service_.end = {.reason = StopReason::kMaxNewTokens};
  const std::string of_all = R"({"echo": true, "logprobs": 1, "max_tokens": 0, "prompt": )";
  const auto reply = Ask("POST", kPath, of_all + IdList(128) + "}");
  ASSERT_EQ(reply->response.status, 200) << reply->body;
  EXPECT_EQ(service_.requests.back().options.max_new_tokens, 0);
  EXPECT_EQ(reply->json()["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(reply->json()["usage"]["completion_tokens"], 0);
  EXPECT_EQ(Ask("POST", kPath, of_all + IdList(129) + "}")->response.status, 400);
}

TEST_F(CompletionRouteTest, TheServersLimitHoldsWhereARequestHasNone) {
  Begin("POST", kPath, R"({"prompt": "x"})");
  options_.max_new_tokens = 3;
  Begin("POST", kPath, R"({"prompt": "x"})");
  EXPECT_EQ(service_.requests[0].options.max_new_tokens, 16);
  EXPECT_EQ(service_.requests[1].options.max_new_tokens, 3);
}

TEST_F(CompletionRouteTest, OfTokensThatLookAlikeTheLikeliestIsNamed) {
  service_.pieces = {
      {.text = "a",
       .tokens = {{.token = 9, .bytes = "a", .logprob = -1, .top = {{9, -1}, {9, -3}}}}}};
  const auto reply = Post(kPath, {{"prompt", "x"}, {"logprobs", 2}});
  const Json top = reply->json()["choices"][0]["logprobs"]["top_logprobs"][0];
  ASSERT_EQ(top.size(), 1u);
  EXPECT_EQ(top.begin().value(), -1.0);
}

TEST_F(CompletionRouteTest, StreamsEndWithAReasonAndUsage) {
  service_.end.reason = StopReason::kMaxNewTokens;
  const auto reply = Ask("POST", kPath, R"({"prompt": "a", "stream": true, "n": 2,
                                            "stream_options": {"include_usage": true}})");
  const std::vector<std::string> events = reply->events();
  ASSERT_EQ(events.size(), 8u) << reply->body;
  EXPECT_EQ(events.back(), "[DONE]");
  int reasons = 0;
  for (std::size_t i = 0; i < 6; ++i) {
    const Json chunk = Json::parse(events[i]);
    EXPECT_EQ(chunk["object"], "text_completion");
    EXPECT_TRUE(chunk.at("usage").is_null());
    const Json choice = chunk["choices"][0];
    if (choice.at("finish_reason").is_null()) continue;
    ++reasons;
    EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_EQ(choice["text"], "");
  }
  EXPECT_EQ(reasons, 2);
  EXPECT_EQ(Json::parse(events[6])["usage"]["completion_tokens"], 6);
}

TEST_F(RoutesTest, LogprobsOfAnAnswerThatIsNotStreamedHaveABoundedRoom) {
  const std::shared_ptr<RequestRoom> room = models_.Find("")->room;
  const std::string bytes(60'000, 'a');
  service_.pieces = {{.text = "a", .tokens = {{.bytes = bytes, .logprob = -1}}}};
  const auto ask = [&](bool streams) {
    service_.cancelled.clear();
    service_.requests.clear();
    return Post("/v1/completions", {{"prompt", "x"}, {"logprobs", 0}, {"stream", streams}});
  };
  const auto chat = [&] {
    service_.cancelled.clear();
    service_.requests.clear();
    return Post("/v1/chat/completions",
                {{"messages", {{{"role", "user"}, {"content", "x"}}}}, {"logprobs", true}});
  };
  {
    HeldBytes one(room), two(room);
    one.Add(room->most / 2, "", "");
    two.Add(room->most / 2 - 100'000, "", "");
    EXPECT_EQ(ask(false)->response.status, 429);
    EXPECT_EQ(service_.cancelled.size(), 1u);
    EXPECT_EQ(chat()->response.status, 429);
    EXPECT_EQ(ask(true)->response.status, 200);
  }
  EXPECT_EQ(ask(false)->response.status, 200);
  EXPECT_EQ(chat()->response.status, 200);
  EXPECT_EQ(room->held, 0u);
}

}  // namespace
}  // namespace qlora
