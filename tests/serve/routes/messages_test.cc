// POST /v1/messages and /v1/messages/count_tokens: what is read, what is refused, and the events.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "serve/routes/route_test_util.h"

namespace qlora {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kPath = "/v1/messages";
constexpr const char* kCountPath = "/v1/messages/count_tokens";
const OrderedJson kUser = {{"role", "user"}, {"content", "What?"}};
const OrderedJson kAsk = {{"model", "talker"},
                          {"max_tokens", 60},
                          {"messages", OrderedJson::array({kUser})},
                          {"temperature", 0}};
const OrderedJson kTools = {{{"name", "get_weather"}, {"input_schema", kWeatherSchema}}};

OrderedJson Block(const char* type, const char* field, const OrderedJson& value) {
  return {{"type", type}, {field, value}};
}

class MessagesTest : public TalkerTest {
 protected:
  // The message that the events build, as the client of Anthropic does it.
  OrderedJson Accumulate() const {
    OrderedJson message;
    std::string json;
    bool is_open = false;
    bool has_ended = false;
    for (const OrderedJson& event : answer_.named_events()) {
      const std::string type = event["type"];
      EXPECT_EQ(event["event"], type);
      EXPECT_FALSE(has_ended) << type;
      EXPECT_EQ(message.is_null(), type == "message_start") << type;
      if (type == "message_start") {
        message = event["message"];
        EXPECT_TRUE(message["content"].empty());
        continue;
      }
      if (type == "content_block_start") {
        EXPECT_FALSE(is_open);
        EXPECT_EQ(event["index"], message["content"].size());
        message["content"].push_back(event["content_block"]);
        is_open = true;
        json.clear();
        continue;
      }
      if (type == "message_delta") {
        EXPECT_FALSE(is_open);
        for (const auto& [name, value] : event["delta"].items()) message[name] = value;
        message["usage"] = event["usage"];
        continue;
      }
      has_ended = type == "message_stop";
      if (has_ended) continue;
      EXPECT_TRUE(is_open) << event;
      EXPECT_EQ(event["index"], message["content"].size() - 1);
      OrderedJson& block = message["content"].back();
      if (type == "content_block_stop") {
        if (block["type"] == "tool_use") block["input"] = OrderedJson::parse(json);
        is_open = false;
        continue;
      }
      EXPECT_EQ(type, "content_block_delta");
      const OrderedJson& delta = event["delta"];
      if (delta["type"] == "input_json_delta") json += delta["partial_json"].get<std::string>();
      for (const char* name : {"text", "thinking", "signature"}) {
        if (!delta.contains(name)) continue;
        block[name] = block[name].get<std::string>() + delta[name].get<std::string>();
      }
    }
    EXPECT_TRUE(has_ended);
    return message;
  }
};

TEST_F(MessagesTest, AnAnswerHasItsThoughtAndItsText) {
  Ask(kPath, kAsk);
  EXPECT_EQ(Prompt(), "<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(service_.requests[0].options.max_new_tokens, 60);
  service_.Answer({kThought, "Fine"}, {.cached_tokens = 5, .new_tokens = 9});
  const OrderedJson message = answer_.json();
  EXPECT_EQ(message["id"], "msg_id0");
  EXPECT_EQ(message["type"], "message");
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_EQ(message["model"], "talker");
  EXPECT_EQ(message["content"], OrderedJson::parse(R"([
    {"type": "thinking", "thinking": "Hm, 漢", "signature": "qlora"},
    {"type": "text", "text": "Fine", "citations": null}])"));
  EXPECT_EQ(message["stop_reason"], "end_turn");
  EXPECT_EQ(message["stop_sequence"], nullptr);
  EXPECT_EQ(message["usage"]["input_tokens"], std::ssize(service_.requests[0].prompt));
  EXPECT_EQ(message["usage"]["output_tokens"], 9);
  EXPECT_THAT(answer_.response.headers, ElementsAre(std::pair("request-id", "id0")));
}

TEST_F(MessagesTest, AStreamBuildsTheSameMessage) {
  for (const auto& [fields, pieces] : std::vector<std::pair<OrderedJson, std::vector<std::string>>>{
           {OrderedJson::object(), {"<thi", "nk>\nHm", ", 漢\n</th", "ink>\n\nFi", "ne"}},
           {{{"tools", kTools}},
            {"<think>a</think>I look.\n<tool_call>\n{\"name\": \"get_weather\", \"argu",
             "ments\": {\"ci", "ty\": \"žs\"}}\n</tool_call>", kCall}}}) {
    Ask(kPath, With(With(kAsk, fields), {{"stream", true}}));
    service_.Answer(pieces);
    const OrderedJson streamed = Accumulate();
    EXPECT_TRUE(answer_.ended);
    Ask(kPath, With(kAsk, fields));
    service_.Answer(pieces);
    EXPECT_EQ(streamed, answer_.json());
  }
}

TEST_F(MessagesTest, AThoughtEndsWithItsSignature) {
  Ask(kPath, With(kAsk, {{"stream", true}}));
  service_.Answer({kThought, "Fine"});
  std::vector<std::string> kinds;
  for (const OrderedJson& event : answer_.named_events()) {
    const bool has_delta = event.contains("index") && event.contains("delta");
    kinds.push_back(has_delta ? event["delta"]["type"] : event["type"]);
  }
  EXPECT_THAT(kinds,
              ElementsAre("message_start", "content_block_start", "thinking_delta",
                          "signature_delta", "content_block_stop", "content_block_start",
                          "text_delta", "content_block_stop", "message_delta", "message_stop"));
}

TEST_F(MessagesTest, NoStopTextCutsACallThatMustBe) {
  const OrderedJson forced = With(kAsk, {{"tools", kTools}, {"tool_choice", {{"type", "any"}}}});
  Ask(kPath, forced);
  EXPECT_EQ(service_.requests.size(), 1u) << answer_.body;
  Ask(kPath, With(forced, {{"stop_sequences", {"}"}}}));
  EXPECT_EQ(answer_.response.status, 400);
  EXPECT_THAT(answer_.body, HasSubstr("stop_sequences: "));
}

TEST_F(MessagesTest, CallsAreBlocksWithTheirInputAsAnObject) {
  Ask(kPath, With(kAsk, {{"tools", kTools}}));
  service_.Answer({"I look.", kCall});
  EXPECT_EQ(answer_.json()["stop_reason"], "tool_use");
  EXPECT_EQ(answer_.json()["content"][1],
            OrderedJson::parse(
                R"({"type": "tool_use", "id": "toolu_id0_0", "name": "get_weather",
          "input": {"city": "žs"}, "caller": {"type": "direct"}})"));
  // A call that is cut has what there is of it.
  Ask(kPath, With(kAsk, {{"tools", kTools}}));
  service_.Answer({"<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Br"},
                  {.reason = StopReason::kMaxNewTokens});
  EXPECT_EQ(answer_.json()["stop_reason"], "max_tokens");
  EXPECT_EQ(answer_.json()["content"][0]["input"], OrderedJson({{"city", "Br"}}));
}

TEST_F(MessagesTest, OneCallEndsAnAnswerThatMayHaveNoMore) {
  Ask(kPath,
      With(kAsk, {{"tools", kTools},
                  {"tool_choice", {{"type", "auto"}, {"disable_parallel_tool_use", true}}}}));
  const auto& is_whole = service_.requests.at(0).is_whole;
  ASSERT_NE(is_whole, nullptr);
  EXPECT_TRUE(is_whole(kCall));
  service_.Answer({std::string(kCall) + kCall});
  EXPECT_EQ(answer_.json()["content"].size(), 1U) << answer_.body;
  EXPECT_EQ(answer_.json()["stop_reason"], "tool_use");
}

TEST_F(MessagesTest, BlocksOfAnAnswerCanBeGivenBack) {
  Ask(kPath, With(kAsk, {{"tools", kTools}}));
  service_.Answer({kThought, "I look.", kCall});
  const OrderedJson content = answer_.json()["content"];
  const OrderedJson result = {
      {"type", "tool_result"},
      {"tool_use_id", content[2]["id"]},
      {"content", {Block("text", "text", "su"), Block("text", "text", "n")}}};
  const OrderedJson messages = {
      kUser,
      {{"role", "assistant"}, {"content", content}},
      {{"role", "user"}, {"content", {result, Block("text", "text", "And now?")}}}};
  Ask(kPath,
      With(kAsk, {{"messages", messages}, {"system", {Block("text", "text", "Be brief.")}}}));
  EXPECT_EQ(
      Prompt(),
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat?<|im_end|>\n"
      "<|im_start|>assistant\n<think>\nHm, 漢\n</think>\n\nI look.<tool_call>\n"
      "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"žs\"}}\n</tool_call><|im_end|>\n"
      "<|im_start|>tool\nsun<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n"
      "<|im_start|>assistant\n");
}

TEST_F(MessagesTest, AnAnswerThatIsBegunGoesOn) {
  const OrderedJson begun = {kUser, {{"role", "assistant"}, {"content", "Fi"}}};
  Ask(kPath, With(kAsk, {{"messages", begun}, {"thinking", {{"type", "disabled"}}}}));
  EXPECT_THAT(Prompt(), testing::EndsWith("<think>\n\n</think>\n\nFi"));
  service_.Answer({"ne"});
  EXPECT_EQ(answer_.json()["content"][0]["text"], "ne");
}

TEST_F(MessagesTest, SystemAndContentHaveManyForms) {
  const auto prompt_of = [&](const OrderedJson& fields) {
    Ask(kPath, With(kAsk, fields));
    return Prompt();
  };
  const std::string one = prompt_of(OrderedJson::object());
  const OrderedJson blocks = {Block("text", "text", "Wh"), Block("text", "text", "at?")};
  EXPECT_EQ(prompt_of({{"messages", {{{"role", "user"}, {"content", blocks}}}}}), one);
  const std::string system = prompt_of({{"system", "a"}});
  EXPECT_NE(system, one);
  EXPECT_EQ(prompt_of({{"messages", {{{"role", "system"}, {"content", "a"}}, kUser}}}), system);
  EXPECT_THAT(prompt_of({{"thinking", {{"type", "disabled"}}}}),
              HasSubstr("<think>\n\n</think>\n\n"));
  EXPECT_EQ(prompt_of({{"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}}}), one);
  EXPECT_EQ(prompt_of({{"tools", kTools}, {"tool_choice", {{"type", "none"}}}}), one);
}

TEST_F(MessagesTest, AFailedResultSaysSo) {
  const auto prompt_of = [&](const OrderedJson& fields) {
    const OrderedJson call = {
        {"type", "tool_use"}, {"id", "c1"}, {"name", "f"}, {"input", OrderedJson::object()}};
    OrderedJson result = {{"type", "tool_result"}, {"tool_use_id", "c1"}, {"content", "no file"}};
    result.update(fields);
    const auto of = [](const char* role, const OrderedJson& block) -> OrderedJson {
      return {{"role", role}, {"content", OrderedJson::array({block})}};
    };
    Ask(kPath, With(kAsk, {{"messages", {kUser, of("assistant", call), of("user", result)}}}));
    return Prompt();
  };
  const std::string good = prompt_of(OrderedJson::object());
  EXPECT_THAT(good, HasSubstr("tool\nno file"));
  EXPECT_EQ(prompt_of({{"is_error", false}}), good);
  EXPECT_THAT(prompt_of({{"is_error", true}}), HasSubstr("tool\nError: no file"));
  prompt_of({{"is_error", "yes"}});
  EXPECT_THAT(answer_.body, HasSubstr("messages[2].content[0].is_error"));
}

class EffortTest : public TalkerTest {
 protected:
  EffortTest()
      : TalkerTest(
            "{% for m in messages %}{{ m.content }}{% endfor %}[{{ reasoning_effort }}"
            "|{{ enable_thinking }}]") {}
};

TEST_F(EffortTest, IsThatOfChats) {
  const auto prompt_of = [&](const OrderedJson& fields) {
    Ask(kPath, With(kAsk, fields));
    return Prompt();
  };
  EXPECT_THAT(prompt_of({{"output_config", {{"effort", "low"}}}}), HasSubstr("[low|True]"));
  EXPECT_THAT(
      prompt_of({{"output_config", {{"effort", "max"}}}, {"thinking", {{"type", "disabled"}}}}),
      HasSubstr("[max|False]"));
  EXPECT_THAT(prompt_of({{"output_config", {{"effort", ""}}}}), HasSubstr("[|]"));
  for (const OrderedJson& effort : {OrderedJson(5), OrderedJson("High")}) {
    prompt_of({{"output_config", {{"effort", effort}}}});
    EXPECT_THAT(answer_.body, HasSubstr("output_config.effort"));
  }
  Ask("/apply-template",
      {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"reasoning_effort", ""}});
  EXPECT_EQ(answer_.json()["prompt"], "Hi[|]");
}

TEST_F(MessagesTest, TheReasonOfTheEndIsSaid) {
  Ask(kPath, With(kAsk, {{"stop_sequences", {"never", "END"}}}));
  EXPECT_THAT(service_.requests[0].stops, ElementsAre("never", "END"));
  service_.Answer({"Fi"}, {.reason = StopReason::kStopText, .stop = "END"});
  EXPECT_EQ(answer_.json()["stop_reason"], "stop_sequence");
  EXPECT_EQ(answer_.json()["stop_sequence"], "END");
  Ask(kPath, kAsk);
  service_.Answer({"Fi"}, {.reason = StopReason::kContext});
  EXPECT_EQ(answer_.json()["stop_reason"], "max_tokens");
}

TEST_F(MessagesTest, TokensAreCountedAsTheyWillBeUsed) {
  const OrderedJson fields = {{"tools", kTools}, {"system", "a"}};
  Ask(kCountPath, With(With(kAsk, fields), {{"max_tokens", nullptr}}));
  const OrderedJson counted = answer_.json();
  Ask(kPath, With(kAsk, fields));
  EXPECT_EQ(counted, OrderedJson({{"input_tokens", service_.requests.at(0).prompt.size()}}));
  Ask(kCountPath, With(kAsk, {{"messages", OrderedJson::array()}}));
  EXPECT_EQ(answer_.response.status, 400);
  EXPECT_EQ(answer_.json()["error"]["type"], "invalid_request_error");
}

TEST_F(MessagesTest, FaultsHaveAnthropicsForm) {
  Ask(kPath, kAsk);
  service_.Answer({"Fi"}, {.error = "secret"});
  EXPECT_EQ(answer_.response.status, 500);
  EXPECT_EQ(answer_.json()["error"]["type"], "api_error");
  Ask(kPath, With(kAsk, {{"stream", true}}));
  service_.Answer({"Fi"}, {.error = "secret"});
  EXPECT_EQ(answer_.named_events().back()["event"], "error");
  EXPECT_EQ(answer_.named_events().back()["error"]["type"], "api_error");
  EXPECT_EQ(answer_.body.find("secret"), std::string::npos);

  service_.refusal.emplace(400, "this model's maximum context length is 10 tokens", "messages",
                           "context_length_exceeded");
  for (const bool streams : {false, true}) {
    Ask(kPath, With(kAsk, {{"stream", streams}}));
    EXPECT_EQ(answer_.response.status, 400);
    EXPECT_EQ(answer_.json()["error"]["type"], "invalid_request_error");
    EXPECT_THAT(answer_.json()["error"]["message"].get<std::string>(),
                HasSubstr("prompt is too long"));
    EXPECT_EQ(answer_.json()["request_id"], "id0");
  }
}

TEST_F(MessagesTest, WrongFieldsAreRefusedByTheirNames) {
  const auto message = [](const OrderedJson& json) {
    return OrderedJson({{"messages", OrderedJson::array({json})}});
  };
  const auto block = [&](const OrderedJson& json) {
    return message({{"role", "user"}, {"content", OrderedJson::array({json})}});
  };
  const std::vector<std::pair<OrderedJson, std::string>> cases = {
      {{{"model", nullptr}}, "model"},
      {{{"max_tokens", nullptr}}, "max_tokens"},
      {{{"max_tokens", 0}}, "max_tokens"},
      {{{"max_tokens", "5"}}, "max_tokens"},
      {{{"messages", nullptr}}, "messages"},
      {{{"messages", OrderedJson::array()}}, "messages"},
      {message({{"role", "king"}, {"content", "x"}}), "messages[0].role"},
      {message({{"role", "user"}, {"content", 5}}), "messages[0].content"},
      {message({{"role", "user"}}), "messages[0].content"},
      {message({{"role", "assistant"}, {"content", "x"}}), "messages"},
      {block({{"type", "image"}}), "messages[0].content[0].type"},
      {block({{"type", "tool_result"}, {"tool_use_id", "toolu_of_nobody"}, {"content", "x"}}),
       "toolu_of_nobody"},
      {{{"system", 5}}, "system"},
      {{{"stop_sequences", "END"}}, "stop_sequences"},
      {{{"temperature", "hot"}}, "temperature"},
      {{{"stream", "yes"}}, "stream"},
      {{{"tools", OrderedJson::object()}}, "tools"},
      {{{"tools", {{{"name", "x"}}}}}, "tools[0].input_schema"},
      {{{"tools", {{{"type", "web_search_20250305"}, {"name", "web_search"}}}}}, "web_search"},
      {{{"tools", kTools}, {"tool_choice", {{"type", "tool"}, {"name", "f"}}}}, "tool_choice"},
      {{{"tool_choice", {{"type", "any"}}}}, "tool_choice"},
      {{{"thinking", 5}}, "thinking"},
      {{{"thinking", {{"type", "hard"}}}}, "thinking.type"},
      {{{"output_format", {{"type", "json_schema"}}}}, "output_format"},
      {{{"output_config", {{"format", {{"type", "json_schema"}}}}}}, "output_config.format"},
      {{{"mcp_servers", {{{"url", "x"}}}}}, "mcp_servers"},
      {{{"thread", {{"type", "new"}}}}, "thread"},
      {{{"compaction", {{"type", "summarize"}}}}, "compaction"},
      {{{"container", "c"}}, "container"},
      {{{"fallbacks", {{{"model", "m"}}}}}, "fallbacks"},
      {{{"context_management", {{"edits", {{{"type", "x"}}}}}}}, "context_management.edits"},
      {{{"stop", "x"}}, "stop_sequences"},
      {{{"reasoning_effort", "low"}}, "thinking"},
  };
  for (const auto& [fields, name] : cases) {
    Ask(kPath, With(kAsk, fields));
    EXPECT_EQ(answer_.response.status, 400) << fields;
    EXPECT_EQ(answer_.json()["type"], "error") << fields;
    EXPECT_EQ(answer_.json()["error"]["type"], "invalid_request_error") << fields;
    EXPECT_THAT(answer_.json()["error"].value("message", ""), HasSubstr(name)) << fields;
  }
  EXPECT_TRUE(service_.requests.empty());
  for (const std::string body : {"{", "[]"}) {
    Ask(kPath, body);
    EXPECT_EQ(answer_.response.status, 400) << body;
    EXPECT_EQ(answer_.json()["type"], "error") << body;
  }
  Ask(kPath, With(kAsk, {{"model", "nobody"}}));
  EXPECT_EQ(answer_.response.status, 404);
  EXPECT_EQ(answer_.json()["error"]["type"], "not_found_error");
}

// By this, Anthropic's client sends the whole conversation again.
TEST_F(MessagesTest, AThreadIsRefusedAsClientsExpect) {
  Ask(kPath, With(kAsk, {{"thread", {{"type", "continue"}, {"previous_message_id", "msg_1"}}}}));
  const OrderedJson error = answer_.json()["error"];
  EXPECT_EQ(error["details"]["error_code"], "thread_unsupported_request");
  EXPECT_EQ(error["details"]["unsupported"], OrderedJson::array({"thread"}));
}

TEST_F(MessagesTest, FieldsOfOtherVersionsDoNoHarm) {
  Ask(kPath, With(kAsk, {{"top_k", 5},
                         {"top_p", 1},
                         {"metadata", {{"user_id", "u"}}},
                         {"service_tier", "auto"},
                         {"thread", nullptr},
                         {"fallbacks", "default"},
                         {"context_management", {{"edits", OrderedJson::array()}}},
                         {"some_new_field", {{"a", 1}}}}));
  service_.Answer({"Fine"});
  EXPECT_EQ(answer_.response.status, 200);
}

}  // namespace
}  // namespace qlora
