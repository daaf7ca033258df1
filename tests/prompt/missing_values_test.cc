// null, "", [] and absent say the same wherever tables write them, and one thing under its several
// names is one thing.
#include "prompt/missing_values.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "data/data_test_util.h"
#include "prompt/chat_template.h"
#include "prompt/conversation.h"
#include "prompt/record_format.h"

namespace qlora {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Shows tools, documents, variables and the fields of messages as it gets them.
constexpr const char* kChat =
    "{%- for t in tools or [] -%}{{ t | tojson }}{%- endfor -%}"
    "{%- for d in documents or [] -%}{% for k, v in d.items() %}{{ k ~ '=' ~ v ~ ';' }}{% endfor %}"
    "{%- endfor -%}"
    "{%- if effort is defined -%}{{ 'effort=' ~ effort ~ ';' }}{%- endif -%}"
    "{%- for m in messages -%}"
    "{{ m.role[0] + ':' }}{{ '#' ~ m.tool_call_id if m.tool_call_id is defined }}"
    "{%- if m.reasoning_content is defined -%}{{ '(' ~ m.reasoning_content ~ ')' }}{%- endif -%}"
    "{{ m.content or '' }}"
    "{%- for c in m.tool_calls or [] -%}{{ c.function | tojson }}{%- endfor -%}"
    "{{ eos_token if m.role == 'assistant' else ';' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}a:{%- if enable_thinking is defined and "
    "not enable_thinking -%}(){%- endif -%}{%- endif -%}";

constexpr const char* kTool =
    R"({"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {)";

class MissingValuesTest : public testing::Test {
 protected:
  Dataset Open(const std::string& text) { return Dataset::Open(Options(text), tokenizer_, &chat_); }
  DataOptions Options(const std::string& text) { return folder_.With("d.jsonl", text); }
  // The text, with EOS as $.
  std::string TextOf(const std::string& record) {
    const Sample sample = Open(record).Get(0);
    std::string text;
    for (const std::int32_t id : sample.ids) {
      text += id == kEos ? "$" : tokenizer_.Decode({&id, 1}, false);
    }
    return text;
  }
  // Of messages that begin with a question, and other fields of the record.
  static std::string Chat(const std::string& messages, const std::string& fields = "") {
    return R"({"messages": [{"role": "user", "content": "u"}, )" + messages + "]" + fields + "}";
  }
  static std::string Call(const std::string& call) {
    return R"({"role": "assistant", "tool_calls": [)" + call + "]}";
  }
  std::vector<std::string> Findings(const std::string& record) {
    return WarnOfFindings(Open(record).report());
  }

  const Tokenizer tokenizer_ = MakeTestTokenizer();
  const ChatTemplate chat_{kChat, tokenizer_};
  DataFolder folder_;
};

TEST_F(MissingValuesTest, NothingHasOneMeaning) {
  const std::string answer = R"({"role": "assistant", "content": "x")";
  for (const char* nothing : {"null", "[]", "{}"}) {
    for (const char* field : {"reasoning_content", "tool_calls", "tool_call_id", "name"}) {
      EXPECT_EQ(TextOf(Chat(fmt::format("{}, \"{}\": {}}}", answer, field, nothing))), "u:u;a:x$");
    }
    EXPECT_EQ(TextOf(Chat(answer + "}", fmt::format(", \"documents\": {}", nothing))), "u:u;a:x$");
    EXPECT_EQ(TextOf(Chat(fmt::format("{}, \"weight\": {}}}", answer, nothing))), "u:u;a:x$");
    EXPECT_EQ(TextOf(Chat(Call(R"({"function": {"name": "f", "arguments": )" +
                               std::string(nothing) + "}}"))),
              R"(u:u;a:{"name": "f", "arguments": {}}$)");
    EXPECT_EQ(
        TextOf(R"({"prompt": "u", "completion": "x", "messages": )" + std::string(nothing) + "}"),
        "u:u;a:x$");
  }
  for (const char* nothing : {"null", "[]", "\"\""}) {
    EXPECT_EQ(TextOf(Chat(Call(R"({"function": {"name": "f"}})") +
                          R"(, {"role": "tool", "content": )" + nothing + "}")),
              R"(u:u;a:{"name": "f", "arguments": {}}$t:;)");
    EXPECT_EQ(TextOf(R"({"question": "u", "answer": "x", "prompt": )" + std::string(nothing) + "}"),
              "u:u;a:x$");
    EXPECT_EQ(TextOf(Chat(answer + "}", R"(, "enable_thinking": )" + std::string(nothing))),
              "u:u;a:x$");
  }
  ExpectRefused([&] { Open(Chat(R"({"role": "", "content": "x"})")); }, "'role' is missing");
}

TEST_F(MissingValuesTest, NullsOfTablesAreShownToNoTemplate) {
  const std::string answer = R"({"role": "assistant", "content": "x"})";
  EXPECT_EQ(TextOf(Chat(answer, R"(, "chat_template_kwargs": {"effort": null})")), "u:u;a:x$");
  EXPECT_EQ(TextOf(Chat(answer, R"(, "chat_template_kwargs": {"effort": 1, "unread": []})")),
            "effort=1;u:u;a:x$");
  EXPECT_EQ(TextOf(Chat(answer, R"(, "documents": [{"title": "d", "url": null}])")),
            "title=d;u:u;a:x$");
  EXPECT_EQ(TextOf(Chat(answer, R"(, "documents": "[{\"title\": \"d\"}]")")), "title=d;u:u;a:x$");
  const std::string schema = R"({"type": "function", "function": {"name": "f", "parameters": )"
                             R"({"properties": {"a": {"default": null, "enum": ["b", null]}}}}})";
  EXPECT_EQ(TextOf(Chat(answer, std::string(R"(, "tools": [)") + kTool +
                                    R"("default": null, "enum": ["b", null], "examples": null, )"
                                    R"("items": null}, "b": null}}}}])")),
            schema + "u:u;a:x$");
  EXPECT_EQ(
      TextOf(Chat(R"({"role": "assistant", "content": [)"
                  R"({"type": "thinking", "thinking": "t", "text": null, "reasoning": null}, )"
                  R"({"type": null, "text": "x"}, {"type": "text", "text": null}]})")),
      "u:u;a:(t)x$");
  EXPECT_EQ(TextOf(Chat(R"({"role": "assistant", "content": [{"type": "tool_use", "name": "f", )"
                        R"("input": null, "id": null}]}, {"role": "user", "content": )"
                        R"([{"type": "tool_result", "content": "r", "tool_use_id": null}]})")),
            R"(u:u;a:{"name": "f", "arguments": {}}$t:r;)");
}

// Whatever letters the calls have that the word has, too.
TEST_F(MissingValuesTest, NoWordForNothingStandsBeforeACall) {
  const ChatTemplate chat(
      "{% for m in messages %}{{ m.role[0] }}:{% if m.content is not string or m.content %}"
      "{{ m.content }}\n{% endif %}{% for c in m.tool_calls or [] %}"
      "[{{ c.function.name }}{{ c.function.arguments | tojson }}]{% endfor %};{% endfor %}",
      tokenizer_);
  for (const std::string argument : {"n", "o", "one", "None", "l", "null", "x"}) {
    for (const char* content : {R"("")", "null", "[]"}) {
      const OrderedJson messages = OrderedJson::parse(
          R"([{"role": "user", "content": "u"}, {"role": "assistant", "content": )" +
          std::string(content) +
          R"(, "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {")" +
          argument + R"(": "x"}}}]}])");
      EXPECT_EQ(chat.Render(messages, nullptr).text(), "u:u\n;a:[f{\"" + argument + "\": \"x\"}];");
    }
  }
}

TEST_F(MissingValuesTest, NullArgumentsThatNoToolHasAreNone) {
  const std::string tools = std::string(R"(, "tools": [)") + kTool + "}}}}}]";
  const std::string call = R"({"function": {"name": "f", "arguments": )";
  const Dataset data = Open(Chat(Call(call + R"({"a": null, "b": null}}})"), tools));
  EXPECT_THAT(WarnOfFindings(data.report()), ElementsAre(HasSubstr("null as an argument")));
  EXPECT_THAT(TextOf(Chat(Call(call + R"({"a": null, "b": null}}})"), tools)),
              HasSubstr(R"({"name": "f", "arguments": {"a": null}}$)"));
  EXPECT_THAT(Findings(Chat(Call(call + R"({"a": 1, "b": null}}})"), tools)), IsEmpty());
  EXPECT_THAT(Findings(Chat(Call(call + R"("{\"b\": null}"}})"))), IsEmpty()) << "as it is written";
}

TEST_F(MissingValuesTest, ArgumentsHaveSeveralNames) {
  const std::string shown = R"(u:u;a:{"name": "f", "arguments": {"a": 1}}$)";
  for (const char* name : {"arguments", "args", "parameters", "input"}) {
    const std::string function = fmt::format(R"({{"name": "f", "{}": {{"a": 1}}}})", name);
    EXPECT_EQ(TextOf(Chat(Call(R"({"function": )" + function + "}"))), shown) << name;
    EXPECT_EQ(TextOf(Chat(Call(function))), shown) << "inside 'function', as the template asks";
    EXPECT_EQ(TextOf(R"({"conversations": [{"from": "human", "value": "u"}, )"
                     R"({"from": "function_call", "value": )" +
                     OrderedJson(function).dump() + "}]}"),
              shown);
  }
  EXPECT_EQ(
      TextOf(Chat(Call(R"({"id": "1", "type": "tool_call", "name": "f", "args": {"a": 1}})"))),
      shown);
  ExpectRefused(
      [&] {
        Open(Chat(Call(R"({"function": {"name": "f", "args": {"a": 1}, "input": {"a": 2}}})")));
      },
      "mean the same and differ");
  ExpectRefused([&] { Open(Chat(Call(R"({"function": "f", "arguments": {"a": 1}})"))); },
                "'function' of a tool call: expected an object, found string");
}

TEST_F(MissingValuesTest, AResultWithATextAmongOtherFieldsIsData) {
  const std::string call =
      Call(R"({"function": {"name": "f"}})") + R"(, {"role": "tool", "content": )";
  const std::string begin = R"(u:u;a:{"name": "f", "arguments": {}}$t:)";
  for (const char* data : {R"({"text": "r", "score": 1})", R"([{"text": "r", "score": 1}])"}) {
    EXPECT_EQ(TextOf(Chat(call + data + "}")), begin + data + ";");
  }
  EXPECT_EQ(TextOf(Chat(call + R"([{"text": "r"}]})")), begin + "r;");
}

TEST_F(MissingValuesTest, WhatAPairSaysBesideItsTextsIsAboutTheAnswer) {
  const auto pairs = [](const std::string& more) {
    return R"({"conversation": [{"human": "u", "assistant": "x")" + more + "}]}";
  };
  EXPECT_EQ(TextOf(pairs(R"(, "reasoning_content": "t", "system": [])")), "u:u;a:(t)x$");
  EXPECT_THAT(Findings(pairs(R"(, "note": "unread")")),
              ElementsAre(HasSubstr("conversations[].note")));
  ExpectRefused([&] { Open(pairs(R"(, "weight": 0)")); }, "no token that is trained on");
}

TEST_F(MissingValuesTest, MasksOfAnUnclearSenseAreRefusedAndSwitchesNamed) {
  const auto answer = [](const std::string& field) {
    return Chat(R"({"role": "assistant", "content": "x", )" + field + "}");
  };
  ExpectRefused([&] { Open(answer(R"("masked": true)")); }, "write 'weight': 0");
  ExpectRefused([&] { Open(answer(R"("loss_scale": 0.0)")); }, "no token that is trained on");
  EXPECT_THAT(Findings(answer(R"("partial": false)")),
              ElementsAre(HasSubstr("messages[].partial")));
}

TEST_F(MissingValuesTest, TextsOfTablesAreTheListsThatTheyHold) {
  const std::string turns = R"([{"from": "human", "value": "u"}, {"from": "gpt", "value": "x"}])";
  EXPECT_EQ(TextOf(R"({"conversation": )" + OrderedJson(turns).dump() + "}"), "u:u;a:x$");
  const std::string prompt = R"([{"role": "user", "content": "u"}])";
  const std::string completion = R"([{"role": "assistant", "content": "x"}])";
  EXPECT_EQ(TextOf(R"({"prompt": )" + OrderedJson(prompt).dump() + R"(, "completion": )" +
                   OrderedJson(completion).dump() + "}"),
            "u:u;a:x$");
  EXPECT_EQ(TextOf(R"({"prompt": "[1]", "completion": "[2]"})"), "u:[1];a:[2]$");
  EXPECT_EQ(AsTurns(R"({"role": "assistant", "content": "x"})")["content"], "x");
  ExpectRefused([&] { Open(R"({"messages": "[{'role': 'user', 'content': 'u'}]"})"); },
                "with ' for quotes, are no JSON");
  // A template takes the text "False" for true.
  const std::string data = R"({"prompt": "u", "completion": "x", "enable_thinking": )";
  const Ids expected = Open(data + "false}").Get(0).labels;
  EXPECT_EQ(Open(data + "\"False\"}").Get(0).labels, expected);
}

TEST_F(MissingValuesTest, FieldsOfOtherHabitsThatReadLikeTheConversationAreUsedOrRefused) {
  for (const char* field : {"systemPrompt", "System Prompt", "passage", "Thoughts"}) {
    ExpectRefused(
        [&] {
          Open(R"({"prompt": "u", "completion": "x", ")" + std::string(field) + R"(": "lost"})");
        },
        std::string("field '") + field + "' reads like a part");
  }
  EXPECT_EQ(TextOf(R"({"question": "u", "cot": "t", "answer": "x"})"), "u:u;a:(t)x$");
}

}  // namespace
}  // namespace qlora
