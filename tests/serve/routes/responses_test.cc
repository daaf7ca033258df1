// POST /v1/responses: what is read, what is refused, and the events of answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "serve/routes/route_test_util.h"
#include "serve/structured/grammar_reader.h"

namespace qlora {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kPath = "/v1/responses";
const OrderedJson kAsk = {{"model", "talker"}, {"input", "What?"}, {"temperature", 0}};
const OrderedJson kTools = {{{"type", "function"},
                             {"name", "get_weather"},
                             {"strict", false},
                             {"parameters", kWeatherSchema}}};

class ResponsesTest : public TalkerTest {
 protected:
  // The response that the events build, as the client of OpenAI does it: it refuses a delta without
  // its part, a part without its item, and an item whose id changes.
  OrderedJson Accumulate() const {
    OrderedJson output = OrderedJson::array();
    std::vector<std::string> texts;
    std::set<std::size_t> parts;
    OrderedJson last;
    std::int64_t number = 0;
    for (const OrderedJson& event : answer_.named_events()) {
      const std::string type = event["type"];
      EXPECT_EQ(event["event"], type);
      EXPECT_EQ(event["sequence_number"], number++);
      EXPECT_TRUE(last.is_null()) << type << " behind the last event";
      if (type == "response.created" || type == "response.in_progress") {
        EXPECT_EQ(event["response"]["status"], "in_progress");
        EXPECT_TRUE(event["response"]["output"].empty());
      } else if (!event.contains("output_index")) {
        last = event;
      } else if (const std::size_t i = event["output_index"]; type.ends_with("item.added")) {
        EXPECT_EQ(i, output.size());
        output.push_back(event["item"]);
        texts.emplace_back();
      } else {
        if (i >= output.size()) {
          ADD_FAILURE() << "no item: " << event;
          return {};
        }
        const OrderedJson& item = event.contains("item") ? event["item"]["id"] : event["item_id"];
        EXPECT_EQ(item, output[i]["id"]);
        if (type.ends_with("part.added")) parts.insert(i);
        if (type.ends_with(".delta")) {
          texts[i] += event["delta"].get<std::string>();
          EXPECT_TRUE(!event.contains("content_index") || parts.contains(i)) << event;
        }
        for (const char* whole : {"text", "arguments"}) {
          EXPECT_EQ(event.value(whole, texts[i]), texts[i]);
        }
        EXPECT_TRUE(!type.ends_with("output_text.delta") || event["logprobs"].is_array());
        if (type.ends_with("item.done")) output[i] = event["item"];
      }
    }
    EXPECT_EQ(last["response"]["output"], output);
    EXPECT_EQ(last["type"], "response." + last["response"]["status"].get<std::string>());
    return last["response"];
  }

  std::vector<std::string> Types() const {
    std::vector<std::string> types;
    for (const OrderedJson& event : answer_.named_events()) {
      const std::string type = event["type"].get<std::string>().substr(9);
      if (types.empty() || types.back() != type) types.push_back(type);
    }
    return types;
  }
};

TEST_F(ResponsesTest, AnAnswerHasItsThoughtAndItsText) {
  Ask(kPath, kAsk);
  EXPECT_EQ(Prompt(), "<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_TRUE(service_.requests[0].keeps_special_tokens);
  EXPECT_FALSE(service_.requests[0].options.do_sample);
  service_.Answer({kThought, "Fi", "ne"}, {.cached_tokens = 5, .new_tokens = 30});
  const OrderedJson response = answer_.json();
  EXPECT_EQ(response["id"], "resp_id0");
  EXPECT_EQ(response["object"], "response");
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["model"], "talker");
  EXPECT_EQ(response["temperature"], 0);
  EXPECT_EQ(response["output"], OrderedJson::parse(R"([
    {"type": "reasoning", "id": "rs_id0_0", "status": "completed", "summary": [],
     "content": [{"type": "reasoning_text", "text": "Hm, 漢"}]},
    {"type": "message", "id": "msg_id0_1", "status": "completed", "role": "assistant",
     "content": [{"type": "output_text", "text": "Fine", "annotations": [], "logprobs": []}]}])"));
  const std::int64_t prompt = std::ssize(service_.requests[0].prompt);
  EXPECT_EQ(response["usage"]["input_tokens"], prompt);
  EXPECT_EQ(response["usage"]["input_tokens_details"]["cached_tokens"], 5);
  EXPECT_EQ(response["usage"]["output_tokens"], 30);
  EXPECT_EQ(response["usage"]["total_tokens"], prompt + 30);
  EXPECT_EQ(response["usage"]["output_tokens_details"]["reasoning_tokens"], 7);
}

TEST_F(ResponsesTest, AStreamHasItsEventsInOrder) {
  Ask(kPath, With(kAsk, {{"stream", true}}));
  EXPECT_EQ(answer_.response.type, "text/event-stream; charset=utf-8");
  service_.Answer({"<thi", "nk>\nHm", ", 漢\n</th", "ink>\n\nFi", "ne"});
  EXPECT_TRUE(answer_.ended);
  EXPECT_THAT(Types(),
              ElementsAre("created", "in_progress", "output_item.added", "content_part.added",
                          "reasoning_text.delta", "reasoning_text.done", "content_part.done",
                          "output_item.done", "output_item.added", "content_part.added",
                          "output_text.delta", "output_text.done", "content_part.done",
                          "output_item.done", "completed"));
  const OrderedJson streamed = Accumulate();
  Ask(kPath, kAsk);
  service_.Answer({std::string(kThought) + "Fine"});
  EXPECT_EQ(streamed["output"], answer_.json()["output"]);
}

TEST_F(ResponsesTest, CallsAreItemsWithTheirArgumentsAsText) {
  Ask(kPath, With(kAsk, {{"tools", kTools}, {"stream", true}}));
  EXPECT_THAT(Prompt(), HasSubstr("<|im_start|>tools\n[{\"type\": \"function\", \"function\": "
                                  "{\"name\": \"get_weather\", \"parameters\""));
  service_.Answer({"I look.\n<tool_call>\n{\"name\": \"get_weather\", \"argu", "ments\": {\"ci",
                   "ty\": \"žs\"}}\n</tool_call>", kCall});
  EXPECT_THAT(Types(),
              ElementsAre("created", "in_progress", "output_item.added", "content_part.added",
                          "output_text.delta", "output_text.done", "content_part.done",
                          "output_item.done", "output_item.added", "function_call_arguments.delta",
                          "function_call_arguments.done", "output_item.done", "output_item.added",
                          "function_call_arguments.delta", "function_call_arguments.done",
                          "output_item.done", "completed"));
  const OrderedJson output = Accumulate()["output"];
  EXPECT_EQ(output[1], OrderedJson::parse(
                           R"({"type": "function_call", "id": "fc_id0_1", "call_id": "call_id0_1",
                               "name": "get_weather", "arguments": "{\"city\": \"žs\"}",
                               "status": "completed"})"));
  EXPECT_NE(output[1]["call_id"], output[2]["call_id"]);
}

TEST_F(ResponsesTest, OneCallEndsAnAnswerThatMayHaveNoMore) {
  for (const bool parallel : {true, false}) {
    service_.requests.clear();
    Ask(kPath, With(kAsk, {{"tools", kTools}, {"parallel_tool_calls", parallel}}));
    const auto& is_whole = service_.requests.at(0).is_whole;
    EXPECT_EQ(is_whole == nullptr, parallel);
    if (!parallel) {
      EXPECT_FALSE(is_whole("I look."));
      EXPECT_TRUE(is_whole(kCall));
    }
    service_.Answer({"I look.", std::string(kCall) + kCall});
    EXPECT_EQ(answer_.json()["output"].size(), parallel ? 3U : 2U) << answer_.body;
  }
}

TEST_F(ResponsesTest, AllItemsOfAnAnswerCanBeGivenBack) {
  Ask(kPath, With(kAsk, {{"tools", kTools}}));
  service_.Answer({kThought, "I look.", kCall});
  OrderedJson input = {{{"role", "user"}, {"content", "What?"}}};
  const OrderedJson first = answer_.json();
  for (const OrderedJson& item : first["output"]) input.push_back(item);
  input.push_back(
      {{"type", "function_call_output"},
       {"call_id", input.back()["call_id"]},
       {"output",
        {{{"type", "input_text"}, {"text", "su"}}, {{"type", "input_text"}, {"text", "n"}}}}});
  Ask(kPath, With(kAsk, {{"input", input}, {"instructions", "Be brief."}}));
  EXPECT_EQ(
      Prompt(),
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat?<|im_end|>\n"
      "<|im_start|>assistant\n<think>\nHm, 漢\n</think>\n\nI look.<tool_call>\n"
      "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"žs\"}}\n</tool_call><|im_end|>\n"
      "<|im_start|>tool\nsun<|im_end|>\n<|im_start|>assistant\n");
  service_.Answer({"Fine"});
  EXPECT_EQ(answer_.json()["instructions"], "Be brief.");
}

TEST_F(ResponsesTest, InputHasManyFormsOfOneConversation) {
  const auto prompt_of = [&](const OrderedJson& fields) {
    Ask(kPath, With(kAsk, fields));
    return Prompt();
  };
  const std::string one = prompt_of({{"input", "What?"}});
  const OrderedJson user = {{"role", "user"}, {"content", "What?"}};
  EXPECT_EQ(prompt_of({{"input", OrderedJson::array({user})}}), one);
  EXPECT_EQ(prompt_of({{"input", OrderedJson::array({With(user, {{"type", "message"}})})}}), one);
  const OrderedJson parts = {{{"type", "input_text"}, {"text", "Wh"}},
                             {{"type", "input_text"}, {"text", "at?"}}};
  EXPECT_EQ(prompt_of({{"input", OrderedJson::array({With(user, {{"content", parts}})})}}), one);
  EXPECT_EQ(
      prompt_of({{"input", OrderedJson::array({{{"role", "developer"}, {"content", "a"}}, user})}}),
      prompt_of({{"instructions", "a"}}));
  EXPECT_THAT(prompt_of({{"reasoning", {{"effort", "none"}}}}),
              HasSubstr("<think>\n\n</think>\n\n"));
  EXPECT_EQ(prompt_of({{"reasoning", {{"effort", "high"}}}}), one);
  EXPECT_EQ(prompt_of({{"tools", kTools}, {"tool_choice", "none"}}), one);
}

TEST_F(ResponsesTest, AnAnswerThatIsCutIsIncomplete) {
  for (const bool streams : {false, true}) {
    Ask(kPath, With(kAsk, {{"max_output_tokens", 3}, {"stream", streams}}));
    EXPECT_EQ(service_.requests.back().options.max_new_tokens, 3);
    service_.Answer({"Fine"}, {.reason = StopReason::kMaxNewTokens, .new_tokens = 3});
    const OrderedJson response = streams ? Accumulate() : answer_.json();
    EXPECT_EQ(response["status"], "incomplete");
    EXPECT_EQ(response["incomplete_details"], OrderedJson({{"reason", "max_output_tokens"}}));
    EXPECT_EQ(response["output"][0]["status"], "incomplete");
  }
}

TEST_F(ResponsesTest, ACallThatIsWholeIsCompletedWhereTheAnswerIsCut) {
  const std::string call(kCall);
  const GenerationEnd cut = {.reason = StopReason::kMaxNewTokens};
  for (const bool is_whole : {true, false}) {
    Ask(kPath, With(kAsk, {{"tools", kTools}}));
    service_.Answer({call.substr(0, call.find("}}") + (is_whole ? 2 : 0))}, cut);
    EXPECT_EQ(answer_.json()["status"], "incomplete");
    const OrderedJson item = answer_.json()["output"][0];
    EXPECT_EQ(item["status"], is_whole ? "completed" : "incomplete");
    EXPECT_EQ(item["arguments"], is_whole ? R"({"city": "žs"})" : R"({"city": "žs")");
  }
}

TEST_F(ResponsesTest, AnEmptyAnswerIsAMessage) {
  Ask(kPath, kAsk);
  service_.Answer({});
  EXPECT_EQ(answer_.json()["output"][0]["content"][0]["text"], "");
}

TEST_F(ResponsesTest, AFaultEndsAnAnswer) {
  Ask(kPath, kAsk);
  service_.Answer({"Fi"}, {.error = "secret"});
  EXPECT_EQ(answer_.response.status, 500);
  EXPECT_EQ(answer_.json()["error"]["type"], "server_error");
  Ask(kPath, With(kAsk, {{"stream", true}}));
  service_.Answer({"Fi"}, {.error = "secret"});
  EXPECT_EQ(answer_.named_events().back()["type"], "response.failed");
  EXPECT_EQ(answer_.named_events().back()["response"]["error"]["code"], "server_error");
  EXPECT_TRUE(answer_.ended);
  EXPECT_EQ(answer_.body.find("secret"), std::string::npos);
}

TEST_F(ResponsesTest, AClientThatLeavesEndsItsGeneration) {
  Ask(kPath, kAsk);
  ASSERT_TRUE(answer_.gone);
  answer_.gone();
  EXPECT_THAT(service_.cancelled, ElementsAre(0));
}

TEST_F(ResponsesTest, WhatTheEngineRefusesIsAnErrorEvenOfAStream) {
  service_.refusal.emplace(400, "this model's maximum context length is 10 tokens", "input",
                           "context_length_exceeded");
  for (const bool streams : {false, true}) {
    Ask(kPath, With(kAsk, {{"stream", streams}}));
    EXPECT_EQ(answer_.response.status, 400);
    EXPECT_EQ(answer_.json()["error"]["code"], "context_length_exceeded");
  }
}

TEST_F(ResponsesTest, ACallThatMustBeMade) {
  const OrderedJson by_name = {{"type", "function"}, {"name", "get_weather"}};
  for (const OrderedJson& choice : {OrderedJson("required"), by_name}) {
    service_.requests.clear();
    Ask(kPath, With(kAsk, {{"tools", kTools}, {"tool_choice", choice}}));
    ASSERT_EQ(service_.requests.size(), 1u) << answer_.body;
    GrammarReader reader(service_.requests[0].format.grammar);
    const auto read = [&](std::string_view text) {
      GrammarReader::Position at = reader.begin();
      for (const char byte : text) at = reader.Next(at, static_cast<unsigned char>(byte));
      return at;
    };
    const std::string call =
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
        "\"Brno\"}}\n</tool_call>";
    EXPECT_TRUE(reader.CanEnd(read(call))) << choice;
    EXPECT_EQ(read("I"), GrammarReader::kNowhere);
    service_.Answer({call});
    const OrderedJson output = answer_.json()["output"];
    ASSERT_EQ(output.size(), 1u) << answer_.body;
    EXPECT_EQ(output[0]["type"], "function_call");
    EXPECT_EQ(output[0]["arguments"], R"({"city": "Brno"})");
  }
}

TEST_F(ResponsesTest, WrongFieldsAreRefusedByTheirNames) {
  const auto item = [](const OrderedJson& json) {
    return OrderedJson({{"input", OrderedJson::array({json})}});
  };
  const OrderedJson user = {{"role", "user"}, {"content", "What?"}};
  const std::vector<std::pair<OrderedJson, std::string>> cases = {
      {{{"input", nullptr}}, "input"},
      {{{"input", 5}}, "input"},
      {{{"input", OrderedJson::array()}}, "input"},
      {item({{"role", "king"}, {"content", "x"}}), "input[0].role"},
      {item({{"role", "user"}, {"content", 5}}), "input[0].content"},
      {item({{"role", "user"}}), "input[0].content"},
      {item({{"role", "user"}, {"content", {{{"type", "input_image"}}}}}),
       "input[0].content[0].type"},
      {item({{"type", "no_such_item"}}), "input[0].type"},
      {item({{"type", "item_reference"}, {"id", "x"}}), "input[0].type"},
      {item({{"type", "function_call_output"}, {"call_id", "call_of_nobody"}, {"output", "x"}}),
       "input[0].call_id"},
      {{{"max_output_tokens", 0}}, "max_output_tokens"},
      {{{"max_output_tokens", "5"}}, "max_output_tokens"},
      {{{"temperature", "hot"}}, "temperature"},
      {{{"temperature", -1}}, "temperature"},
      {{{"top_p", 2}}, "top_p"},
      {{{"stream", "yes"}}, "stream"},
      {{{"tools", OrderedJson::object()}}, "tools"},
      {{{"tools", {{{"type", "web_search"}}}}}, "tools[0].type"},
      {{{"tools", {{{"type", "function"}}}}}, "tools[0].name"},
      {{{"tools", {{{"type", "function"}, {"name", "get weather"}}}}}, "tools[0].name"},
      {{{"tools", kTools}, {"tool_choice", 5}}, "tool_choice"},
      {{{"tools", kTools}, {"tool_choice", "sometimes"}}, "tool_choice"},
      {{{"tool_choice", "required"}}, "tool_choice"},
      {{{"tools", {{{"type", "function"}, {"name", "f"}, {"parameters", {{"oneOf", kTools}}}}}},
        {"tool_choice", "required"}},
       "tools[0].parameters.oneOf"},
      {{{"tools", kTools}, {"tool_choice", {{"type", "function"}, {"name", "f"}}}}, "tool_choice"},
      {{{"tools", kTools}, {"text", {{"format", {{"type", "json_object"}}}}}}, "text.format"},
      {{{"text", {{"format", {{"type", "json_object"}}}}}, {"min_tokens", 3}}, "min_tokens"},
      {{{"instructions", 5}}, "instructions"},
      {{{"previous_response_id", "resp_1"}}, "previous_response_id"},
      {{{"conversation", "conv_1"}}, "conversation"},
      {{{"prompt", {{"id", "p"}}}}, "prompt"},
      {{{"background", true}}, "background"},
      {{{"top_logprobs", 3}}, "top_logprobs"},
      {{{"include", {"message.output_text.logprobs"}}}, "include"},
      {{{"max_tokens", 5}}, "max_tokens"},
      {{{"stop", "x"}}, "stop"},
      {{{"context_management", {{{"type", "compaction"}}}}}, "context_management"},
      {{{"truncation", "zz"}}, "truncation"},
      {{{"max_tool_calls", "abc"}}, "max_tool_calls"},
      {{{"store", "abc"}}, "store"},
      {{{"service_tier", 5}}, "service_tier"},
      {{{"text", {{"verbosity", "zzz"}}}}, "text.verbosity"},
      {{{"parallel_tool_calls", 0}}, "parallel_tool_calls"},
      {{{"reasoning", {{"effort", 5}}}}, "reasoning.effort"},
      {{{"reasoning", {{"effort", "extreme"}}}}, "reasoning.effort"},
      {{{"text", {{"format", {{"type", "json_schema"}}}}}}, "text.format.schema"},
  };
  for (const auto& [fields, param] : cases) {
    Ask(kPath, With(kAsk, fields));
    EXPECT_EQ(answer_.response.status, 400) << fields;
    EXPECT_EQ(answer_.json()["error"]["param"], param) << fields << ": " << answer_.body;
  }
  EXPECT_TRUE(service_.requests.empty());
  for (const std::string body : {"{", "[]", ""}) {
    Ask(kPath, body);
    EXPECT_EQ(answer_.response.status, 400) << body;
  }
  Ask(kPath, With(kAsk, {{"model", "nobody"}}));
  EXPECT_EQ(answer_.response.status, 404);
}

TEST_F(ResponsesTest, NullIsAbsentAndUnknownFieldsDoNoHarm) {
  OrderedJson body = kAsk;
  for (const char* name : {"instructions",
                           "include",
                           "metadata",
                           "parallel_tool_calls",
                           "previous_response_id",
                           "conversation",
                           "reasoning",
                           "service_tier",
                           "store",
                           "stream",
                           "stream_options",
                           "top_logprobs",
                           "top_p",
                           "truncation",
                           "background",
                           "max_tool_calls",
                           "prompt",
                           "text",
                           "tools",
                           "tool_choice"}) {
    body[name] = nullptr;
  }
  body["some_new_field"] = {{"a", 1}};
  Ask(kPath, body);
  service_.Answer({"Fine"});
  EXPECT_EQ(answer_.response.status, 200);
  EXPECT_EQ(answer_.json()["tools"], OrderedJson::array());
  EXPECT_EQ(answer_.json()["tool_choice"], "auto");
}

class PlainResponsesTest : public TalkerTest {
 protected:
  PlainResponsesTest()
      : TalkerTest(
            "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}") {}
};

TEST_F(PlainResponsesTest, AModelWithoutAFormOfCallsTakesNoTools) {
  Ask(kPath, With(kAsk, {{"tools", kTools}}));
  EXPECT_EQ(answer_.response.status, 400);
  EXPECT_EQ(answer_.json()["error"]["param"], "tools");
  Ask(kPath, kAsk);
  EXPECT_FALSE(service_.requests.at(0).keeps_special_tokens);
}

// Calls are read in the same way for chat completions.
class ChatCallsTest : public TalkerTest {
 protected:
  // The choice of an answer to a question with a tool.
  OrderedJson Choice(const std::string& answer, StopReason reason) {
    const OrderedJson function = {{"name", "get_weather"}, {"parameters", kWeatherSchema}};
    Ask("/v1/chat/completions",
        OrderedJson{{"messages", {{{"role", "user"}, {"content", "What?"}}}},
                    {"tools", {{{"type", "function"}, {"function", function}}}},
                    {"stop", "STOP"}});
    service_.Answer({answer}, {.reason = reason, .stop = "STOP"});
    return answer_.json()["choices"][0];
  }
};

// Clients make the calls of an answer that ends with tool_calls.
TEST_F(ChatCallsTest, ACallThatAStopTextCutIsNone) {
  const std::string call(kCall);
  const std::string cut = call.substr(0, call.find("\"}"));
  EXPECT_EQ(Choice(call, StopReason::kEos)["finish_reason"], "tool_calls");
  EXPECT_EQ(Choice(call + " and", StopReason::kStopText)["finish_reason"], "tool_calls");
  EXPECT_EQ(Choice(cut, StopReason::kEos)["finish_reason"], "tool_calls");
  EXPECT_EQ(Choice(cut, StopReason::kMaxNewTokens)["finish_reason"], "length");
  const OrderedJson choice = Choice(cut, StopReason::kStopText);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"city\": \"žs");
}

}  // namespace
}  // namespace qlora
