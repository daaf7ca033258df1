// Every field of a record or message is used, or named in a warning, or refused, in all formats.
#include <nlohmann/json.hpp>

#include "data/data_test_util.h"
#include "prompt/chat_template.h"
#include "prompt/conversation.h"

namespace qlora {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A template of a model that thinks and calls tools.
constexpr const char* kChat =
    "{%- for m in messages -%}"
    "{%- if m.role == 'assistant' -%}{{ 'A:' }}"
    "{%- if m.reasoning_content -%}{{ '(' + m.reasoning_content + ')' }}{%- endif -%}"
    "{{ m.content or '' }}"
    "{%- for c in m.tool_calls or [] -%}"
    "{{ '<' + c.function.name + ' ' + (c.function.arguments | tojson) + '>' }}{%- endfor -%}"
    "{{ eos_token }}"
    "{%- elif m.role in ['system', 'user', 'tool'] -%}{{ m.role[0] + ':' + m.content + ';' }}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ 'A:' }}{%- if enable_thinking is defined and "
    "not enable_thinking -%}{{ '()' }}{%- endif -%}{%- endif -%}";

class RecordFieldsTest : public testing::Test {
 protected:
  Dataset Open(const std::string& text, const std::string& chat = kChat,
               TrainTurns turns = TrainTurns::kAll) {
    chat_.emplace(chat, tokenizer_);
    DataOptions options = folder_.With("d.jsonl", text);
    options.train_turns = turns;
    return Dataset::Open(options, tokenizer_, &*chat_);
  }
  // The sample with brackets around what is trained on, and EOS as $.
  std::string Show(const Dataset& data, std::int64_t i = 0) const {
    const Sample sample = data.Get(i);
    std::string text;
    bool open = false;
    for (std::size_t t = 0; t < sample.ids.size(); ++t) {
      const bool trained = sample.labels[t] != kIgnoreLabel;
      if (trained != open) text += trained ? "[" : "]";
      open = trained;
      text += sample.ids[t] == kEos ? "$" : tokenizer_.Decode({&sample.ids[t], 1}, false);
    }
    return text + (open ? "]" : "");
  }
  std::string ShowOf(const std::string& text, const std::string& chat = kChat) {
    return Show(Open(text, chat));
  }

  const Tokenizer tokenizer_ = MakeTestTokenizer();
  std::optional<ChatTemplate> chat_;
  DataFolder folder_;
};

TEST_F(RecordFieldsTest, FlagsKeepAnswersOutOfTheLoss) {
  const auto two = [](const std::string& flag) {
    return R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "no", )" +
           flag + R"(}, {"role": "assistant", "content": "yes"}]})";
  };
  for (const char* flag :
       {R"("loss": false)", R"("train": 0)", R"("training": false)", R"("trainable": false)",
        R"("loss_mask": 0)", R"("weight": false)", R"("weight": 0.0)"}) {
    EXPECT_EQ(ShowOf(two(flag)), "u:u;A:no$A:[yes$]") << flag;
  }
  EXPECT_EQ(ShowOf(two(R"("loss": true, "weight": null)")), "u:u;A:[no$]A:[yes$]");
  ExpectRefused([&] { Open(two(R"("loss": 0.5)")); }, "'loss' says whether to train");
  ExpectRefused([&] { Open(two(R"("loss": true, "weight": 0)")); }, "differ about whether");
  EXPECT_EQ(ShowOf(R"({"conversations": [{"from": "human", "value": "u", "train": false}, )"
                   R"({"from": "gpt", "value": "no", "loss": false}, )"
                   R"({"from": "gpt", "value": "yes"}]})"),
            "u:u;A:no$A:[yes$]");
}

TEST_F(RecordFieldsTest, AllFormatsReadSystemToolsAndVariables) {
  const std::string list = R"([{"role": "user", "content": "u"}])";
  const std::string answer = R"([{"role": "assistant", "content": "x"}])";
  for (const std::string system : {R"("system": "s")", R"("system_prompt": "s")"}) {
    const std::string both = R"([{"role": "user", "content": "u"}, )" + answer.substr(1);
    for (const std::string& record : {R"("messages": )" + both, R"("conversations": )" + both,
                                      R"("prompt": )" + list + R"(, "completion": )" + answer,
                                      std::string(R"("prompt": "u", "completion": "x")"),
                                      std::string(R"("instruction": "u", "output": "x")")}) {
      EXPECT_EQ(ShowOf("{" + system + ", " + record + "}"), "s:s;u:u;A:[x$]") << record;
    }
  }
  ExpectRefused(
      [&] { Open(R"({"system": "s", "messages": [{"role": "system", "content": "t"}]})"); },
      "keep one of them");
  for (const char* tools : {"null", "\"null\"", "\"[]\"", "\"\"", "[]"}) {
    EXPECT_EQ(ShowOf(R"({"tools": )" + std::string(tools) +
                     R"(, "messages": [{"role": "assistant", "content": "x"}]})"),
              "A:[x$]");
  }
  const Conversation one = ConversationOfMessages(OrderedJson::parse(
      R"({"messages": [{"role": "user", "content": "u"}], "enable_thinking": false,
          "chat_template_kwargs": "{\"a\": 1}"})"));
  EXPECT_EQ(one.variables, OrderedJson::parse(R"({"a": 1, "enable_thinking": false})"));
  EXPECT_EQ(ChatTemplate(kChat, tokenizer_).Prompt(one), "u:u;A:()");
}

TEST_F(RecordFieldsTest, RolesAreReadWithBlanksAndInCapitals) {
  EXPECT_EQ(ShowOf(R"({"messages": [{"role": " User", "content": "u"}, )"
                   R"({"role": "ASSISTANT\n", "content": "x"}]})"),
            "u:u;A:[x$]");
  EXPECT_EQ(ShowOf(R"({"conversations": [{"from": "Human ", "value": "u"}, )"
                   R"({"from": " gpt", "value": "x"}]})"),
            "u:u;A:[x$]");
}

TEST_F(RecordFieldsTest, ASystemTextThatTheMessagesRepeatIsShownOnce) {
  const std::string turns = R"([{"role": "system", "content": "s"}, )"
                            R"({"role": "user", "content": "u"}, )";
  EXPECT_EQ(ShowOf(R"({"system": "s", "messages": )" + turns +
                   R"({"role": "assistant", "content": "x"}]})"),
            "s:s;u:u;A:[x$]");
  EXPECT_EQ(ShowOf(R"({"system": "s", "conversations": )" + turns +
                   R"({"role": "assistant", "content": "no", "weight": 0}, )"
                   R"({"role": "assistant", "content": "x"}, {"role": "user", "content": "v"}]})"),
            "s:s;u:u;A:no$A:[x$]u:v;");
}

TEST_F(RecordFieldsTest, ColumnsOfTablesNeedNotBeTools) {
  for (const std::string record :
       {R"("instruction": "u", "output": "x")", R"("prompt": "u", "completion": "x")"}) {
    for (const char* tools : {R"("hammer, saw")", R"("7")"}) {
      const Dataset data = Open("{" + record + R"(, "functions": )" + tools + "}");
      EXPECT_EQ(Show(data), "u:u;A:[x$]");
      EXPECT_THAT(WarnOfFindings(data.report()),
                  ElementsAre(HasSubstr("functions: not used: descriptions of")));
    }
    EXPECT_THAT(
        WarnOfFindings(Open("{" + record + R"(, "chat_template_kwargs": "none"})").report()),
        ElementsAre(HasSubstr("chat_template_kwargs: not used")));
    ExpectRefused([&] { Open("{" + record + R"(, "tools": {"a": 1}})"); }, "expected a list");
  }
  ExpectRefused(
      [&] { Open(R"({"tools": "saw", "messages": [{"role": "assistant", "content": "x"}]})"); },
      "field 'tools'");
}

TEST_F(RecordFieldsTest, ToolsThatATemplateOfTheUserShowsAreNotGivenTwice) {
  chat_.emplace(std::string("{% if tools %}T{% endif %}") + kChat, tokenizer_);
  for (const char* tools : {"[1]", "saw"}) {
    DataOptions options = folder_.With(
        "d.jsonl", R"({"q": "u", "tools": ")" + std::string(tools) + R"(", "a": "x"})");
    options.layout = {.choice = LayoutChoice::kChat,
                      .prompt_template = "{tools} {q}",
                      .completion_template = "{a}"};
    const Dataset data = Dataset::Open(options, tokenizer_, &*chat_);
    EXPECT_EQ(Show(data), "u:" + std::string(tools) + " u;A:[x$]");
    EXPECT_TRUE(WarnOfFindings(data.report()).empty());
  }
}

TEST_F(RecordFieldsTest, ThoughtsAreGivenUnderTheNameThatTheTemplateReads) {
  const auto named = [](const std::string& field) {
    return R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "x", ")" +
           field + R"(": "t"}]})";
  };
  const std::string chat = std::string("{% set enable_thinking = 1 %}") + kChat;
  for (const char* field : {"reasoning_content", "thinking", "reasoning"}) {
    EXPECT_EQ(ShowOf(named(field), chat), "u:u;A:[(t)x$]") << field;
  }
  EXPECT_THAT(Open(named("thinking")).report().readings,
              ElementsAre("thinking as reasoning_content"));
  const Dataset blind =
      Open(named("thinking"), "{% for m in messages %}{{ m.content ~ eos_token }}{% endfor %}");
  EXPECT_THAT(WarnOfFindings(blind.report()), ElementsAre(HasSubstr("[].thinking: thoughts")));
  // A word of another object does not hide the field of messages.
  const Dataset name = Open(R"({"messages": [{"role": "user", "content": "u", "name": "n"}, )"
                            R"({"role": "assistant", "content": "x"}]})");
  EXPECT_THAT(WarnOfFindings(name.report()), ElementsAre(HasSubstr("messages[].name: a field")));
}

TEST_F(RecordFieldsTest, CallsOfAllFormsAreShown) {
  const std::string call = R"([{"function": {"name": "f", "arguments": {"a": 1}}}])";
  for (const std::string& turn :
       {R"({"role": "assistant", "content": "", "tool_calls": )" + call + "}",
        R"({"role": "assistant", "content": null, "tool_calls": )" + call + "}",
        std::string(R"({"role": "assistant", "content": null, "function_call": )"
                    R"({"name": "f", "arguments": "{\"a\": 1}"}})"),
        std::string(R"({"role": "assistant", "content": [{"type": "tool_use", "id": "1", )"
                    R"("name": "f", "input": {"a": 1}}]})"),
        std::string(R"({"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": )"
                    R"({\"a\": 1}}"})")}) {
    for (const char* format : {"messages", "conversations"}) {
      EXPECT_EQ(ShowOf(R"({")" + std::string(format) + R"(": [)" + turn + "]}"),
                "A:[<f {\"a\": 1}>$]")
          << turn;
    }
  }
  EXPECT_EQ(ShowOf(R"({"messages": [{"role": "user", "content": [{"type": "tool_result", )"
                   R"("tool_use_id": "1", "content": [{"type": "text", "text": "r"}]}, )"
                   R"({"type": "text", "text": "u"}]}, {"role": "assistant", "content": )"
                   R"([{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "x"}]}]})"),
            "t:r;u:u;A:[(t)x$]");
}

TEST_F(RecordFieldsTest, ArgumentsAreTextWhereTheTemplateJoinsThem) {
  std::string joins = kChat;
  joins.replace(joins.find("(c.function.arguments | tojson)"), 31, "c.function.arguments");
  std::string prints = joins;
  prints.replace(prints.find("' ' + c.function.arguments"), 26, "' ' ~ c.function.arguments");
  for (const std::string& chat : {joins, prints}) {
    for (const char* arguments : {R"({"a": "b"})", R"("{\"a\": \"b\"}")"}) {
      EXPECT_EQ(ShowOf(R"({"messages": [{"role": "assistant", "tool_calls": [{"function": )"
                       R"({"name": "f", "arguments": )" +
                           std::string(arguments) + "}}]}]}",
                       chat),
                "A:[<f {\"a\": \"b\"}>$]");
    }
  }
  EXPECT_EQ(ShowOf(R"({"messages": [{"role": "assistant", "tool_calls": [{"function": )"
                   R"({"name": "f", "arguments": ""}}]}]})"),
            "A:[<f {}>$]");
}

TEST_F(RecordFieldsTest, WhatIsNotUsedIsNamed) {
  const Dataset data = Open(
      R"({"id": 1, "images": ["i"], "train": true, "messages": [{"role": "critic", "content": )"
      R"("c"}, {"role": "assistant", "content": ""}, {"role": "assistant", "content": "x"}]})");
  EXPECT_EQ(data.report().files[0].fields, "not read: id");
  EXPECT_THAT(WarnOfFindings(data.report()),
              ElementsAre(HasSubstr("answers without text"), HasSubstr("images: not used"),
                          HasSubstr("the role critic")));
  // A role that some templates know is read as the usual one where the template skips it.
  EXPECT_EQ(ShowOf(R"({"messages": [{"role": "developer", "content": "d"}, )"
                   R"({"role": "assistant", "content": "x"}]})"),
            "s:d;A:[x$]");
  ExpectRefused(
      [&] { Open(R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})"); },
      "image_url");
}

TEST_F(RecordFieldsTest, ARoleHasTheNameThatTheTemplateNames) {
  const std::string turns = R"({"messages": [{"role": "user", "content": "u"}, )"
                            R"({"role": "observation", "content": "o"}, {"role": "tool", )"
                            R"("content": "r"}, {"role": "assistant", "content": "x"}]})";
  const std::string begin =
      "{%- for m in messages -%}{%- if m.role == 'assistant' -%}A:{{ m.content }}"
      "{{ eos_token }}";
  const std::string end =
      "{%- else -%}{{ m.role + ':' + m.content + ';' }}{%- endif -%}{%- endfor -%}"
      "{%- if add_generation_prompt -%}A:{%- endif -%}";
  // Shown as some role, but not as the result that it is.
  EXPECT_EQ(ShowOf(turns, begin + "{%- elif m.role == 'tool' -%}<{{ m.content }}>" + end),
            "user:u;<o><r>A:[x$]");
  EXPECT_EQ(ShowOf(turns, begin +
                              "{%- elif m.role in ['tool', 'observation'] and m.role == 'tool' "
                              "-%}<{{ m.content }}>" +
                              end),
            "user:u;observation:o;<r>A:[x$]");
  EXPECT_EQ(ShowOf(turns, begin + end), "user:u;observation:o;tool:r;A:[x$]");
}

TEST_F(RecordFieldsTest, ATurnBeginsBehindTheEndingOfThePrompt) {
  const std::string chat =
      "{%- for m in messages -%}{%- if m.role == 'assistant' -%}{{ 'A:\n' + m.content + eos_token "
      "+ '\n' }}{%- else -%}{{ '<q>' + m.content + '</q>' }}{%- if not loop.last -%}{{ '\n' }}"
      "{%- endif -%}{{ '<end>\n' }}{%- endif -%}{%- endfor -%}"
      "{%- if add_generation_prompt -%}{{ 'A:\n' }}{%- endif -%}";
  EXPECT_EQ(ShowOf(R"({"messages": [{"role": "user", "content": "u"}, )"
                   R"({"role": "assistant", "content": "x"}]})",
                   chat),
            "<q>u</q>\n<end>\nA:\n[x$]\n");
}

TEST_F(RecordFieldsTest, MarksAreFollowedThroughCapturedTexts) {
  const std::string mark = "{% generation %}{{ m.content ~ eos_token }}{% endgeneration %}";
  const auto around = [](const std::string& before, const std::string& inside) {
    return before + "{% for m in messages %}{{ m.role[0] }}-" + inside + "{% endfor %}";
  };
  for (const std::string& chat :
       {around("{% macro a(m) %}+" + mark + "{% endmacro %}", "{{ a(m) }}"),
        around("{% macro a(m) %} +" + mark + " {% endmacro %}", "{{ '' ~ a(m) | trim }}"),
        around("", "{% set t %}+" + mark + "{% endset %}{{ t }}"),
        around("", "{% filter trim %} +" + mark + "{% endfilter %}"),
        around("{% macro w() %}+{{ caller() }}{% endmacro %}",
               "{% call w() %}" + mark + "{% endcall %}")}) {
    EXPECT_EQ(ShowOf(R"({"messages": [{"role": "assistant", "content": "x"}]})", chat), "a-+[x$]")
        << chat;
  }
  ExpectRefused(
      [&] {
        Open(R"({"messages": [{"role": "assistant", "content": "x"}]})",
             around("{% macro a(m) %}" + mark + "{% endmacro %}", "{{ a(m) | tojson }}"));
      },
      "goes through a function");
}

// A loop over numbers, beside a variable that holds another message.
TEST_F(RecordFieldsTest, MarksBelongToTheAnswersInTheirOrder) {
  const std::string chat =
      "{% set first = messages[0] %}{% for i in range(messages | length) %}"
      "{% if messages[i].role == 'assistant' %}{% generation %}{{ messages[i].content ~ eos_token "
      "}}"
      "{% endgeneration %}{% else %}{{ messages[i].content }};{% endif %}{% endfor %}";
  EXPECT_EQ(ShowOf(R"({"messages": [{"role": "user", "content": "u"}, )"
                   R"({"role": "assistant", "content": "no", "weight": 0}, )"
                   R"({"role": "user", "content": "v"}, {"role": "assistant", "content": "y"}]})",
                   chat),
            "u;no$v;[y$]");
}

TEST_F(RecordFieldsTest, LastTurnOrEachTurn) {
  const std::string talk =
      R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "x"}, )"
      R"({"role": "user", "content": "v"}, {"role": "assistant", "content": "y"}]})";
  EXPECT_EQ(Show(Open(talk, kChat, TrainTurns::kLast)), "u:u;A:x$u:v;A:[y$]");
  EXPECT_EQ(Show(Open(R"({"messages": [{"role": "assistant", "content": "w"}, )"
                      R"({"role": "assistant", "content": "x"}, )"
                      R"({"role": "assistant", "content": "no", "weight": 0}]})",
                      kChat, TrainTurns::kLast)),
            "A:w$A:[x$]A:no$");
  // A template that shows thoughts of the last turn alone, as at inference.
  const std::string chat =
      "{%- for m in messages -%}{%- if m.role == 'assistant' -%}{{ 'A:' }}{%- if loop.last -%}"
      "{{ '()' }}{%- endif -%}{{ m.content + eos_token }}{%- else -%}{{ m.content + ';' }}"
      "{%- endif -%}{%- endfor -%}{%- if add_generation_prompt -%}{{ 'A:' }}{%- endif -%}";
  const Dataset each = Open(talk, chat, TrainTurns::kEach);
  ASSERT_EQ(each.size(), 2);
  EXPECT_EQ(Show(each, 0), "u;A:[()x$]");
  EXPECT_EQ(Show(each, 1), "u;A:x$v;A:[()y$]");
  EXPECT_THAT(RenderReport(each.report()), HasSubstr("2 of 2 samples of 1 records kept"));

  chat_.emplace(kChat, tokenizer_);
  DataOptions options = folder_.With("d.jsonl", talk);
  options.train_turns = TrainTurns::kEach;
  options.max_length = 8;
  const Dataset cut = Dataset::Open(options, tokenizer_, &*chat_);
  EXPECT_EQ(Show(cut), "u:u;A:[x$]");
  EXPECT_THAT(RenderReport(cut.report()), HasSubstr("1 of 2 samples of 1 records kept"));
  EXPECT_THAT(WarnOfLostRecords(cut.report()),
              HasSubstr("1 of 2 samples of 1 records (50 %) is dropped or cut"));
  options.max_length = 7;
  ExpectRefused([&] { Dataset::Open(options, tokenizer_, &*chat_); },
                "no sample is left of 2 samples of 1 records: 2 are longer");
}

TEST_F(RecordFieldsTest, NumbersAndTextsWithBos) {
  EXPECT_EQ(ShowOf(R"({"prompt": "u", "completion": 9})"), "u:u;A:[9$]");
  EXPECT_EQ(ShowOf(R"({"question": 2.5, "answer": true})"), "u:2.5;A:[true$]");
  const Dataset text = Open(R"({"text": "<s>x"})");
  EXPECT_EQ(text.Get(0).ids, Join({{kBos}, Bytes("x"), {kEos}}));
  EXPECT_EQ(text.report().own_bos, 1);
}

}  // namespace
}  // namespace qlora
