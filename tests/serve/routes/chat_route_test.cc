// POST /v1/chat/completions: what a request may say, and what clients get.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "serve/routes/serve_fixture.h"
#include "serve/structured/grammar_reader.h"

namespace qlora {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kChat = "/v1/chat/completions";

class ChatRouteTest : public RoutesTest {
 protected:
  // A request with a field, as the service gets it.
  std::shared_ptr<FakeReply> With(const std::string& name, const std::string& value) {
    service_.requests.clear();
    service_.cancelled.clear();
    const std::string body =
        R"({"messages": [{"role": "user", "content": "Hi"}], ")" + name + "\": " + value + "}";
    return Ask("POST", kChat, body);
  }
};

TEST_F(ChatRouteTest, AnswersAsOpenAiDoes) {
  const auto reply =
      Post(kChat, {{"model", "ada"}, {"messages", {{{"role", "user"}, {"content", "Hi"}}}}});
  ASSERT_EQ(reply->response.status, 200) << reply->body;
  const Json json = reply->json();
  EXPECT_EQ(json["id"], "chatcmpl-id0");
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["model"], "ada");
  EXPECT_EQ(json["system_fingerprint"], "print");
  EXPECT_TRUE(json["created"].is_number_integer());
  const Json choice = {
      {"index", 0},
      {"message", {{"role", "assistant"}, {"content", "Hello you"}, {"refusal", nullptr}}},
      {"logprobs", nullptr},
      {"finish_reason", "stop"}};
  EXPECT_EQ(json["choices"], Json::array({choice}));
  const std::int64_t prompt = std::ssize(service_.requests[0].prompt);
  EXPECT_EQ(json["usage"], (Json{{"prompt_tokens", prompt},
                                 {"completion_tokens", 3},
                                 {"total_tokens", prompt + 3},
                                 {"prompt_tokens_details", {{"cached_tokens", 2}}}}));
  EXPECT_EQ(service_.requests[0].model->name, "ada");
  EXPECT_EQ(models_.Find("")->tokenizer->Decode(service_.requests[0].prompt, false),
            "<s>[user]Hi[assistant]");
  EXPECT_THAT(log_, HasSubstr("/v1/chat/completions 200"));
  EXPECT_THAT(log_, HasSubstr("ada, seed 11"));
  EXPECT_THAT(log_, testing::Not(HasSubstr("Hi")));
}

TEST_F(ChatRouteTest, StreamsTheSameInChunks) {
  const auto reply =
      Post(kChat, {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"stream", true}});
  EXPECT_THAT(reply->response.type, HasSubstr("text/event-stream"));
  const std::vector<std::string> events = reply->events();
  ASSERT_EQ(events.size(), 5u) << reply->body;
  EXPECT_EQ(events.back(), "[DONE]");
  std::vector<Json> deltas;
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const Json chunk = Json::parse(events[i]);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_EQ(chunk["id"], "chatcmpl-id0");
    EXPECT_FALSE(chunk.contains("usage"));
    ASSERT_EQ(chunk["choices"].size(), 1u);
    const Json reason = i + 2 == events.size() ? Json("stop") : Json(nullptr);
    EXPECT_EQ(chunk["choices"][0].at("finish_reason"), reason);
    deltas.push_back(chunk["choices"][0]["delta"]);
  }
  EXPECT_THAT(deltas,
              ElementsAre(Json{{"role", "assistant"}, {"content", ""}}, Json{{"content", "Hello"}},
                          Json{{"content", " you"}}, Json::object()));
}

TEST_F(ChatRouteTest, UsageComesLastWhereItIsAskedFor) {
  const auto reply = Post(kChat, {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
                                  {"stream", true},
                                  {"stream_options", {{"include_usage", true}}}});
  const std::vector<std::string> events = reply->events();
  ASSERT_EQ(events.size(), 6u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(Json::parse(events[i]).at("usage").is_null());
  const Json last = Json::parse(events[4]);
  EXPECT_EQ(last["choices"], Json::array());
  EXPECT_EQ(last["usage"]["completion_tokens"], 3);
}

TEST_F(ChatRouteTest, ReasonsOfTheEnd) {
  for (const auto& [reason, name] :
       std::vector<std::pair<StopReason, std::string>>{{StopReason::kEos, "stop"},
                                                       {StopReason::kStopText, "stop"},
                                                       {StopReason::kMaxNewTokens, "length"},
                                                       {StopReason::kContext, "length"}}) {
    service_.end.reason = reason;
    EXPECT_EQ(With("n", "1")->json()["choices"][0]["finish_reason"], name);
  }
}

// Every field: what is wrong is named, and null is absent.
TEST_F(ChatRouteTest, WrongFieldsAreNamed) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> wrong = {
      {"temperature", {"\"hot\"", "-1", "100.5", "{}", "true", "\"1\""}},
      {"top_p", {"2", "-0.1", "\"x\"", "[]"}},
      {"top_k", {"-2", "1.5", "\"4\"", "true"}},
      {"min_p", {"-0.1", "1.1", "\"x\""}},
      {"repetition_penalty", {"0", "-1", "\"x\"", "101"}},
      {"repeat_penalty", {"0", "\"x\""}},
      {"max_tokens", {"\"5\"", "-5", "0", "1.5", "true", "[]"}},
      {"max_completion_tokens", {"0", "1.5", "\"5\""}},
      {"n", {"0", "-1", "17", "\"two\"", "1.5", "true"}},
      {"stop",
       {"5", "[5]", "{}", "true", "\"" + std::string(257, 'a') + "\"",
        "[" + std::string("\"a\",") + std::string("\"a\"") + ",null]"}},
      {"stream", {"\"yes\"", "5", "[]"}},
      {"stream_options", {"5", "true", "{}", "{\"include_usage\": 5}, \"stream\": true"}},
      {"seed", {"\"x\"", "1.5", "true", "99999999999999999999999"}},
      {"logprobs", {"\"yes\"", "5"}},
      {"top_logprobs", {"-1", "21", "1000", "\"x\"", "3"}},
      {"logit_bias",
       {"5", "{\"x\": 1}", "{\"5\": \"y\"}", "{\"288\": 1}", "{\"-1\": 1}", "{\"5\": 101}", "[]"}},
      {"presence_penalty", {"\"x\"", "-2.1", "2.1"}},
      {"frequency_penalty", {"\"x\"", "-2.1", "2.1"}},
      {"min_tokens", {"-1", "1.5", "\"x\""}},
      {"ignore_eos", {"1", "\"true\""}},
      {"cache_prompt", {"1", "\"true\""}},
      {"chat_template_kwargs", {"5", "\"x\"", "[]"}},
      {"response_format",
       {"\"json\"", "{}", "{\"type\": \"json_schema\"}",
        "{\"type\": \"json_schema\", \"json_schema\": {\"name\": \"x\"}}",
        "{\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"pattern\": \"x\"}}}",
        "{\"type\": \"no-such-type\"}"}},
      {"model", {"5", "[]"}},
      {"tools", {"5", "[5]", "[{\"type\": \"web_search\"}]", "[{\"type\": \"function\"}]"}},
      {"tool_choice", {"\"required\"", "{\"type\": \"function\"}"}},
      {"functions", {"[]"}},
      {"audio", {"{}"}},
      {"modalities", {"[\"audio\"]", "5"}},
      {"web_search_options", {"{}"}},
      {"parallel_tool_calls", {"0", "\"no\""}},
      {"reasoning_effort", {"5", "\"hgih\"", "\"low high\""}},
      // Of other servers and interfaces.
      {"max_output_tokens", {"5", "0"}},
      {"n_predict", {"5"}},
      {"stop_token_ids", {"[5]"}},
      {"best_of", {"2"}},
      {"echo", {"true"}},
      {"add_generation_prompt", {"false"}},
      {"thinking", {"{\"type\": \"disabled\"}"}},
      {"enable_thinking", {"true", "false"}},
      {"mirostat", {"2"}},
      {"typical_p", {"0.5"}},
      {"lora", {R"([{"id": 0, "scale": 1.0}])"}},
      {"lora_path", {"\"ada\""}},
      {"adapter_id", {"\"ada\""}},
      {"adapters", {"\"folder\""}},
      {"do_sample", {"1", "\"yes\""}},
      {"repeat_last_n", {"64", "0"}},
      {"repetition_penalty_range", {"1024"}},
      {"no_repeat_ngram_size", {"3"}},
      {"penalty_alpha", {"0.6"}},
      {"ban_eos_token", {"true"}},
      {"random_seed", {"5"}},
      {"options", {R"({"temperature": 0})"}},
      {"extra_body", {R"({"top_k": 5})"}},
      {"documents", {R"([{"text": "x"}])"}},
      {"input_ids", {"[1, 2]"}},
      {"add_special_tokens", {"true"}},
      {"think", {"false"}},
      {"include_reasoning", {"false"}},
      {"reasoning_format", {"\"none\"", "5"}},
      {"regex", {"\"[a-z]\""}},
      {"return_token_ids", {"true"}},
      {"adapter", {"\"ada\""}},
      {"prompt", {"\"Hi\""}},
      {"input", {"\"Hi\""}},
      {"previous_response_id", {"\"resp_1\""}},
      {"conversation", {"\"conv_1\""}},
      {"background", {"true"}},
      {"images", {R"(["AA=="])"}},
      {"image_data", {R"([{"data": "AA=="}])"}},
      {"context", {"[1, 2]"}},
      {"input_prefix", {"\"x\""}},
      {"num_beams", {"2"}},
      {"eos_token_id", {"5"}},
  };
  for (const auto& [name, values] : wrong) {
    for (const std::string& value : values) {
      const auto reply = With(name, value);
      const std::string what = name + " = " + value.substr(0, 40) + ": " + reply->body;
      EXPECT_EQ(reply->response.status, 400) << what;
      EXPECT_TRUE(service_.requests.empty()) << what;
      const Json error = ErrorOf(*reply);
      EXPECT_EQ(error["type"], "invalid_request_error") << what;
      ASSERT_TRUE(error["param"].is_string()) << what;
      EXPECT_TRUE(error["param"].get<std::string>().starts_with(name)) << what;
      EXPECT_TRUE(error.contains("code")) << what;
    }
    EXPECT_EQ(With(name, "null")->response.status, 200) << name << " = null";
  }
  EXPECT_EQ(With("user", "5")->response.status, 200);
  EXPECT_EQ(With("no_such_field", "{\"a\": []}")->response.status, 200);
  EXPECT_EQ(With("tools", "[]")->response.status, 200);
  EXPECT_EQ(With("tool_choice", "\"none\"")->response.status, 200);
}

TEST_F(ChatRouteTest, FieldsOfOthersThatChangeNothingDoNoHarm) {
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{{"n_predict", "-1"},
                                                        {"stop_token_ids", "[]"},
                                                        {"best_of", "1"},
                                                        {"echo", "false"},
                                                        {"add_generation_prompt", "true"},
                                                        {"chat_template", "\"\""},
                                                        {"mirostat", "0"},
                                                        {"typical_p", "1.0"},
                                                        {"lora", "[]"},
                                                        {"do_sample", "true"},
                                                        {"repeat_last_n", "-1"},
                                                        {"no_repeat_ngram_size", "0"},
                                                        {"add_special_tokens", "false"},
                                                        {"spaces_between_special_tokens", "true"},
                                                        {"options", "{}"},
                                                        {"images", "[]"},
                                                        {"background", "false"},
                                                        {"num_beams", "1"},
                                                        {"num_ctx", "2048"},
                                                        {"include_reasoning", "true"},
                                                        {"reasoning_format", "\"auto\""}}) {
    EXPECT_EQ(With(name, value)->response.status, 200) << name;
  }
  const Json error = ErrorOf(*With("max_output_tokens", "5"));
  EXPECT_THAT(error["message"].get<std::string>(),
              HasSubstr("this interface has max_tokens, max_completion_tokens"));
  EXPECT_THAT(ErrorOf(*With("adapter_id", "\"ada\""))["message"].get<std::string>(),
              HasSubstr("this interface has model"));
  // The window of a penalty that is off.
  EXPECT_EQ(With("repeat_last_n", R"(64, "repeat_penalty": 1.0)")->response.status, 200);
  EXPECT_EQ(With("repeat_last_n", R"(64, "repeat_penalty": 1.1)")->response.status, 400);
}

TEST_F(ChatRouteTest, PicturesBesideTheTextOfAMessageAreRefused) {
  const auto ask = [&](const std::string& images) {
    return Ask("POST", kChat,
               R"({"messages": [{"role": "user", "content": "Hi", "images": )" + images + "}]}");
  };
  EXPECT_EQ(ErrorOf(*ask(R"(["AA=="])"))["param"], "messages[0].images");
  for (const char* none : {"[]", "null"}) EXPECT_EQ(ask(none)->response.status, 200) << none;
}

TEST_F(ChatRouteTest, AnAnswerIsNoShorterThanItMayBeLong) {
  const auto reply = With("max_tokens", R"(3, "min_tokens": 4)");
  EXPECT_EQ(ErrorOf(*reply)["param"], "min_tokens");
  EXPECT_TRUE(service_.requests.empty());
  EXPECT_EQ(With("max_tokens", R"(4, "min_tokens": 4)")->response.status, 200);
}

TEST_F(ChatRouteTest, DoSampleDecidesBeforeTheTemperature) {
  EXPECT_FALSE((With("do_sample", "false"), service_.requests.at(0).options.do_sample));
  EXPECT_TRUE((With("do_sample", "true"), service_.requests.at(0).options.do_sample));
  With("do_sample", R"(false, "temperature": 0.7)");
  EXPECT_FALSE(service_.requests.at(0).options.do_sample);
  With("do_sample", R"(true, "temperature": 0)");
  EXPECT_FALSE(service_.requests.at(0).options.do_sample);
}

TEST_F(ChatRouteTest, FieldsReachTheService) {
  const auto request = [&](const std::string& name, const std::string& value) {
    const auto reply = With(name, value);
    EXPECT_EQ(reply->response.status, 200) << name << ": " << reply->body;
    return service_.requests.empty() ? GenerationRequest() : service_.requests.front();
  };
  // The model's own, where nothing is said.
  EXPECT_EQ(request("n", "1").options.temperature, 0.5);
  EXPECT_TRUE(request("n", "1").options.do_sample);
  EXPECT_EQ(request("n", "1").options.seed, 11);
  EXPECT_EQ(request("n", "1").options.max_new_tokens, std::numeric_limits<std::int32_t>::max());
  EXPECT_FALSE(request("temperature", "0").options.do_sample);
  EXPECT_EQ(request("temperature", "2").options.temperature, 2);
  EXPECT_FALSE(request("top_p", "0").options.do_sample);
  EXPECT_EQ(request("top_k", "-1").options.top_k, 0);
  EXPECT_EQ(request("min_p", "0.25").options.min_p, 0.25);
  EXPECT_EQ(request("repeat_penalty", "1.5").options.repetition_penalty, 1.5);
  EXPECT_EQ(request("max_tokens", "5").options.max_new_tokens, 5);
  EXPECT_EQ(request("max_tokens", "4294967296").options.max_new_tokens, std::int64_t{1} << 32);
  EXPECT_EQ(request("max_tokens\": 5, \"max_completion_tokens", "7").options.max_new_tokens, 7);
  EXPECT_EQ(request("seed", "-1").options.seed, -1);
  EXPECT_EQ(request("seed", "18446744073709551615").options.seed, -1);
  EXPECT_THAT(request("stop", "\"END\"").stops, ElementsAre("END"));
  EXPECT_THAT(request("stop", "[\"a\", \"\", \"b\"]").stops, ElementsAre("a", "b"));
  EXPECT_THAT(
      request("logit_bias", "{\"5\": -100, \"6\": 2}").logit_bias,
      ElementsAre(std::pair(5, -std::numeric_limits<float>::infinity()), std::pair(6, 2.0F)));
  EXPECT_EQ(request("logprobs", "true").top_logprobs, 0);
  EXPECT_EQ(request("logprobs\": true, \"top_logprobs", "3").top_logprobs, 3);
  EXPECT_EQ(request("min_tokens", "4").min_tokens, 4);
  EXPECT_TRUE(request("ignore_eos", "true").ignore_eos);
  EXPECT_FALSE(request("cache_prompt", "false").keeps_prompt);
  options_.max_new_tokens = 9;
  EXPECT_EQ(request("n", "1").options.max_new_tokens, 9);
}

TEST_F(ChatRouteTest, AFormHoldsTheAnswer) {
  const std::string object = R"({"type": "json_object"})";
  const std::string schema =
      R"({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}}})";
  const std::string mixed = R"({"type": "json_object", "schema": {"type": "null"}})";
  for (const std::string& format : {object, schema, mixed}) {
    EXPECT_EQ(With("response_format", format)->response.status, 200);
    ASSERT_EQ(service_.requests.size(), 1u);
    const AnswerGrammar& form = service_.requests[0].format;
    ASSERT_NE(form.grammar, nullptr);
    EXPECT_NE(form.texts, nullptr);
    EXPECT_EQ(form.begins_behind, "");
    GrammarReader reader(form.grammar);
    const bool takes_object = reader.Next(reader.begin(), '{') != GrammarReader::kNowhere;
    EXPECT_EQ(takes_object, format == object);
  }
  EXPECT_EQ(With("response_format", R"({"type": "text"})")->response.status, 200);
  EXPECT_EQ(service_.requests.at(0).format.grammar, nullptr);
  // What would break the form, or be broken by it.
  const std::string with = "response_format\": " + object + ", \"";
  EXPECT_EQ(ErrorOf(*With(with + "min_tokens", "3"))["param"], "min_tokens");
  EXPECT_EQ(ErrorOf(*With(with + "ignore_eos", "true"))["param"], "ignore_eos");
  const std::string tools = R"([{"type": "function", "function": {"name": "f"}}])";
  EXPECT_EQ(With(with + "tool_choice\": \"none\", \"tools", tools)->response.status, 200);
  // Its texts are texts, even those that would begin a thought.
  service_.pieces = {{.text = R"(["<think>", "<tool_call>"])"}};
  EXPECT_EQ(With("response_format", object)->json()["choices"][0]["message"]["content"],
            R"(["<think>", "<tool_call>"])");
}

TEST_F(ChatRouteTest, MessagesThatAreNoneAreRefused) {
  for (const char* messages :
       {"null", "\"hi\"", "[]", "[1]", "[{}]", R"([{"role": "user"}])",
        R"([{"role": 5, "content": "x"}])", R"([{"role": "user", "content": 5}])",
        R"([{"role": "user", "content": null}])", R"([{"role": "assistant", "content": null}])",
        R"([{"role": "king", "content": "x"}])",
        R"([{"role": "user", "content": [{"type": "text"}]}])",
        R"([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])",
        R"([{"role": "user", "content": ["x"]}])", R"([{"role": "tool", "content": "x"}])",
        R"([{"role": "tool", "content": "x", "tool_call_id": "1"}])",
        R"([{"role": "assistant", "content": "x", "prefix": true}])",
        R"([{"role": "assistant", "content": "x", "function_call": {"name": "f"}}])"}) {
    const auto reply = Ask("POST", kChat, std::string("{\"messages\": ") + messages + "}");
    EXPECT_EQ(reply->response.status, 400) << messages;
    const Json param = ErrorOf(*reply)["param"];
    EXPECT_TRUE(param.is_string() && param.get<std::string>().starts_with("messages")) << messages;
  }
  EXPECT_EQ(Ask("POST", kChat, "{}")->response.status, 400);
}

TEST_F(ChatRouteTest, PartsOfTextAreJoinedAndDevelopersAreTheSystem) {
  Ask("POST", kChat,
      R"({"messages": [{"role": "developer", "content": "S"}, {"role": "user", "content":
          [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
          "chat_template_kwargs": {"kind": "k"}})");
  ASSERT_EQ(service_.requests.size(), 1u);
  EXPECT_EQ(models_.Find("")->tokenizer->Decode(service_.requests[0].prompt, false),
            "<s>[system]S[user]ab(k)[assistant]");
  // What the conversation itself has is no variable.
  for (const char* name : {"messages", "tools", "add_generation_prompt"}) {
    const Json error = ErrorOf(*With("chat_template_kwargs", std::string("{\"") + name + "\": 1}"));
    EXPECT_EQ(error["param"], std::string("chat_template_kwargs.") + name);
  }
}

TEST_F(ChatRouteTest, AnswersOfClientsAreTakenAsTheyGiveThemBack) {
  Ask("POST", kChat,
      R"({"messages": [{"role": "user", "content": "a"},
          {"role": "assistant", "content": null, "refusal": "No", "tool_calls": null},
          {"role": "assistant", "content": "b", "refusal": null, "tool_calls": [],
           "function_call": null, "audio": null, "annotations": []},
          {"role": "assistant", "content": null, "reasoning_content": "Hm"}]})");
  ASSERT_EQ(service_.requests.size(), 1u);
  EXPECT_EQ(models_.Find("")->tokenizer->Decode(service_.requests[0].prompt, false),
            "<s>[user]a[assistant]No[assistant]b[assistant][assistant]");
}

TEST_F(ChatRouteTest, ChoicesDrawWithSeedsOfTheirOwn) {
  const auto reply = With("n", "3");
  ASSERT_EQ(service_.requests.size(), 3u);
  EXPECT_EQ(service_.requests[0].options.seed, 11);
  EXPECT_NE(service_.requests[1].options.seed, 11);
  EXPECT_NE(service_.requests[1].options.seed, service_.requests[2].options.seed);
  const Json json = reply->json();
  ASSERT_EQ(json["choices"].size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(json["choices"][i]["index"], i);
  // The prompt once, the answers all.
  EXPECT_EQ(json["usage"]["prompt_tokens"], service_.requests[0].prompt.size());
  EXPECT_EQ(json["usage"]["completion_tokens"], 9);
}

TEST_F(ChatRouteTest, LogprobsHaveBytesAndAlternatives) {
  service_.pieces = {{.text = "H",
                      .tokens = {{.token = 5, .bytes = "H", .logprob = -0.5, .top = {{5, -0.5}}},
                                 {.token = 6, .bytes = "\xF0", .logprob = -1.5}}}};
  for (const bool streams : {false, true}) {
    const auto reply = With("logprobs\": true, \"stream", streams ? "true" : "false");
    Json content = Json::array();
    if (streams) {
      for (const std::string& event : reply->events()) {
        if (event == "[DONE]") continue;
        const Json logprobs = Json::parse(event)["choices"][0]["logprobs"];
        if (logprobs.is_null()) continue;
        for (const Json& token : logprobs["content"]) content.push_back(token);
      }
    } else {
      content = reply->json()["choices"][0]["logprobs"]["content"];
    }
    ASSERT_EQ(content.size(), 2u) << reply->body;
    EXPECT_EQ(content[0]["token"], "H");
    EXPECT_EQ(content[0]["logprob"], -0.5);
    EXPECT_EQ(content[0]["bytes"], Json::array({72}));
    EXPECT_EQ(content[0]["top_logprobs"].size(), 1u);
    EXPECT_EQ(content[1]["bytes"], Json::array({240}));
  }
}

TEST_F(ChatRouteTest, ErrorsBeforeAndWithinAStream) {
  EXPECT_EQ(With("model", "\"no-such\"")->response.status, 404);
  EXPECT_EQ(ErrorOf(*With("model", "\"no-such\""))["code"], "model_not_found");
  // The second choice finds no room: the first one is not written, either.
  service_.requests.clear();
  service_.refusal.emplace(429, "full", "", "queue_full");
  service_.refuse_from = 1;
  const auto full = Ask("POST", kChat, R"({"messages": [{"role": "user", "content": "x"}],
                                           "n": 2, "stream": true})");
  EXPECT_EQ(full->response.status, 429) << full->body;
  EXPECT_EQ(ErrorOf(*full)["code"], "queue_full");
  EXPECT_THAT(service_.cancelled, ElementsAre(0));
  service_.refusal.reset();
  service_.cancelled.clear();
  // A fault of the server: its text is in the log alone.
  service_.end.error = "secret";
  const auto whole = With("stream", "false");
  EXPECT_EQ(whole->response.status, 500);
  EXPECT_THAT(whole->body, testing::Not(HasSubstr("secret")));
  EXPECT_THAT(log_, HasSubstr("secret"));
  const auto stream = With("stream", "true");
  EXPECT_TRUE(stream->ended);
  EXPECT_TRUE(Json::parse(stream->events().back()).contains("error"));
  // A fault of the request is told to its client.
  service_.end.field = "response_format";
  const auto wrong = With("stream", "false");
  EXPECT_EQ(wrong->response.status, 400);
  EXPECT_EQ(ErrorOf(*wrong)["message"], "response_format: secret");
  EXPECT_EQ(ErrorOf(*wrong)["param"], "response_format");
  EXPECT_THAT(With("stream", "true")->events().back(), HasSubstr("response_format: secret"));
}

TEST_F(ChatRouteTest, AClientThatLeavesFreesItsAnswers) {
  const auto reply = Begin("POST", kChat, R"({"messages": [{"role": "user", "content": "x"}],
                                              "n": 2})");
  ASSERT_TRUE(reply->gone);
  reply->gone();
  EXPECT_THAT(service_.cancelled, ElementsAre(0, 1));
  service_.Write();
  EXPECT_FALSE(reply->ended);
}

}  // namespace
}  // namespace qlora
