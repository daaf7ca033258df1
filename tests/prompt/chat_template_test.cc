#include "prompt/chat_template.h"

#include <map>
#include <nlohmann/json.hpp>

#include "data/data_test_util.h"
#include "prompt/chat_template_load.h"
#include "prompt/rendered_conversation.h"
#include "test_build.h"

namespace qlora {
namespace {

using testing::HasSubstr;

std::tm Day(int year, int month, int day) {
  std::tm date = {};
  date.tm_year = year - 1900;
  date.tm_mon = month - 1;
  date.tm_mday = day;
  date.tm_hour = 12;
  std::mktime(&date);
  return date;
}

Tokenizer MakeChatTokenizer() {
  return MakeTestTokenizer(
      {.special = {"<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|User|>"}});
}

class ChatTemplateTest : public testing::Test {
 protected:
  ChatTemplate Fixture(const std::string& name) {
    return ChatTemplate(ReadFixture("chat/" + name + ".jinja"), tokenizer_,
                        {.now = Day(2024, 7, 26)});
  }
  ChatTemplate Of(const std::string& text) { return ChatTemplate(text, tokenizer_); }

  // The conversation with brackets around what the assistant wrote.
  static std::string Turns(const ChatTemplate& chat, const std::string& messages,
                           const std::string& tools = "null") {
    const RenderedConversation rendered =
        chat.Render(OrderedJson::parse(messages), OrderedJson::parse(tools));
    std::string shown;
    std::size_t at = 0;
    for (const ChatSpan& span : rendered.turns()) {
      EXPECT_EQ(OrderedJson::parse(messages)[span.message].at("role"), "assistant");
      EXPECT_LE(at, span.begin);
      shown += rendered.text().substr(at, span.begin - at) + "⟦" +
               rendered.text().substr(span.begin, span.end - span.begin) + "⟧";
      at = span.end;
    }
    return shown + rendered.text().substr(at);
  }

  const Tokenizer tokenizer_ = MakeChatTokenizer();
};

constexpr const char* kTurns =
    R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": " Hello! "},
        {"role": "user", "content": "More"}, {"role": "assistant", "content": "No."}])";
constexpr const char* kSystem =
    R"([{"role": "system", "content": "Sys"}, {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "More"},
        {"role": "assistant", "content": "No"}])";
constexpr const char* kThoughts =
    R"([{"role": "user", "content": "1+1"},
        {"role": "assistant", "content": "<think>\nadd\n</think>\n\n2"},
        {"role": "user", "content": "1+2"},
        {"role": "assistant", "content": "<think>\nadd again\n</think>\n\n3"}])";
constexpr const char* kCalls =
    R"([{"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": "get", "arguments": {"place": "Bern"}}}]},
        {"role": "tool", "content": "rain"}, {"role": "assistant", "content": "It rains."}])";
constexpr const char* kTools = R"([{"type": "function", "function": {"name": "get"}}])";

// As a template alone renders the conversation, without the ways in which ChatTemplate fits it.
std::string RenderRaw(const std::string& name, const OrderedJson& conversation,
                      const OrderedJson& tools) {
  const OrderedJson& messages = conversation.at("messages");
  OrderedJson variables = {
      {"messages", messages}, {"tools", tools},
      {"documents", nullptr}, {"add_generation_prompt", messages.back().at("role") != "assistant"},
      {"bos_token", "<s>"},   {"eos_token", "</s>"}};
  if (conversation.contains("variables")) variables.update(conversation.at("variables"));
  std::vector<JinjaVariable> given;
  for (const auto& [key, value] : variables.items()) given.push_back({key, &value});
  return JinjaTemplate(ReadFixture("chat/" + name + ".jinja"))
      .Render(given, {.limits = {}, .now = Day(2024, 7, 26)})
      .text;
}

// The files and tests/interop/chat_diff.mjs say where the results come from: Python's jinja2.
TEST_F(ChatTemplateTest, RendersAsJinja2) {
  const OrderedJson cases =
      OrderedJson::parse(std::ifstream(SourceDir() / "tests/interop/chat_cases.json"));
  std::map<std::string, OrderedJson> conversations;
  for (const OrderedJson& c : cases.at("conversations")) conversations[c.at("name")] = c;
  std::ifstream golden(SourceDir() / "tests/fixtures/chat/golden.jsonl");
  int count = 0;
  for (std::string line; std::getline(golden, line); ++count) {
    const OrderedJson expected = OrderedJson::parse(line);
    const std::string name = expected.at("template");
    const OrderedJson& conversation = conversations.at(expected.at("case"));
    SCOPED_TRACE(name + ", " + conversation.at("name").get<std::string>());
    const OrderedJson& messages = conversation.at("messages");
    const OrderedJson tools = conversation.contains("tools") ? cases.at("tools") : OrderedJson();
    const ChatTemplate chat = Fixture(name);
    // The conversations of these two are fitted to them: by a text of the prompt, by names.
    // So are calls without a content, of which a template would print None.
    const bool raw = conversation.contains("raw") || name == "channels" || name == "harmony" ||
                     conversation.at("name") == "tool_calls_two";
    const auto render = [&] {
      if (raw) return RenderRaw(name, conversation, tools);
      return messages.back().at("role") == "assistant" ? chat.Render(messages, tools).text()
                                                       : chat.Prompt(messages, tools);
    };
    if (expected.at("text").is_null()) {
      EXPECT_THROW(render(), Error);
    } else {
      EXPECT_EQ(render(), expected.at("text"));
    }
  }
  EXPECT_EQ(count, 400);
}

TEST_F(ChatTemplateTest, TurnsOfTemplatesThatAppend) {
  EXPECT_EQ(Turns(Fixture("chatml"), kTurns),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n⟦ Hello! <|im_end|>⟧\n"
            "<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n⟦No.<|im_end|>⟧\n");
  EXPECT_EQ(Turns(Fixture("llama2"), kTurns),
            "<s>[INST] Hi [/INST]⟦ Hello! </s>⟧<s>[INST] More [/INST]⟦ No. </s>⟧");
  EXPECT_EQ(Turns(Fixture("gemma"), kTurns),
            "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n⟦Hello!<end_of_turn>⟧\n"
            "<start_of_turn>user\nMore<end_of_turn>\n<start_of_turn>model\n⟦No.<end_of_turn>⟧\n");
  EXPECT_EQ(Turns(Fixture("zephyr"), kTurns),
            "<|user|>\nHi</s>\n<|assistant|>\n⟦ Hello! </s>⟧\n<|user|>\nMore</s>\n"
            "<|assistant|>\n⟦No.</s>⟧\n");
  EXPECT_EQ(Turns(Fixture("generation"), kTurns), Turns(Fixture("chatml"), kTurns));
  EXPECT_EQ(
      Turns(*LoadChatTemplate({.chat_template = "chatml"}, tokenizer_, ChatClock::kFixed), kTurns),
      Turns(Fixture("chatml"), kTurns));
  EXPECT_EQ(
      Turns(*LoadChatTemplate({.chat_template = "plain"}, tokenizer_, ChatClock::kFixed), kTurns),
      "<s>User:\nHi\nAssistant:\n⟦ Hello! </s>⟧\nUser:\nMore\nAssistant:\n⟦No.</s>⟧\n");
}

TEST_F(ChatTemplateTest, TurnsOfTemplatesThatDoNotAppend) {
  EXPECT_EQ(Turns(Fixture("mistral"), kSystem),
            "<s>[INST]Hi[/INST]⟦Hello</s>⟧[INST]Sys\n\nMore[/INST]⟦No</s>⟧");
  EXPECT_EQ(Turns(Fixture("phi3"), kSystem),
            "<|system|>\nSys<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\n⟦Hello<|end|>⟧\n"
            "<|user|>\nMore<|end|>\n<|assistant|>\n⟦No<|end|>\n</s>⟧");
  EXPECT_EQ(Turns(Fixture("qwen3"), kThoughts),
            "<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n⟦2<|im_end|>⟧\n"
            "<|im_start|>user\n1+2<|im_end|>\n<|im_start|>assistant\n"
            "⟦<think>\nadd again\n</think>\n\n3<|im_end|>⟧\n");
  EXPECT_EQ(Turns(Fixture("qwen3"), kTurns),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n⟦ Hello! <|im_end|>⟧\n"
            "<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n"
            "⟦<think>\n\n</think>\n\nNo.<|im_end|>⟧\n");
  EXPECT_EQ(Turns(Fixture("deepseek"), kThoughts),
            "<s><|User|>1+1<|Assistant|>⟦\n\n2</s>⟧<|User|>1+2<|Assistant|>⟦\n\n3</s>⟧");
}

TEST_F(ChatTemplateTest, TurnsWithToolCalls) {
  EXPECT_THAT(Turns(Fixture("qwen2"), kCalls, kTools),
              HasSubstr("<|im_start|>assistant\n⟦<tool_call>\n{\"name\": \"get\", \"arguments\": "
                        "{\"place\": \"Bern\"}}\n</tool_call><|im_end|>⟧\n<|im_start|>user\n"
                        "<tool_response>\nrain\n</tool_response><|im_end|>\n"
                        "<|im_start|>assistant\n⟦It rains.<|im_end|>⟧\n"));
  EXPECT_THAT(Turns(Fixture("llama3"), kCalls, kTools),
              HasSubstr("<|end_header_id|>\n\n⟦{\"name\": \"get\", \"parameters\": {\"place\": "
                        "\"Bern\"}}<|eom_id|>⟧<|start_header_id|>ipython<|end_header_id|>\n\n"
                        "rain<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
                        "⟦It rains.<|eot_id|>⟧"));
  EXPECT_THAT(Turns(Fixture("mistral"), kCalls, kTools),
              HasSubstr("[/INST]⟦[TOOL_CALLS][{\"name\": \"get\", \"arguments\": {\"place\": "
                        "\"Bern\"}}]</s>⟧[TOOL_RESULTS]{\"content\": \"rain\"}[/TOOL_RESULTS]"
                        "⟦It rains.</s>⟧"));
}

// GLM-4's template reads calls as messages with metadata, and results under another role.
TEST_F(ChatTemplateTest, TurnsWithToolCallsAsMessages) {
  const ChatTemplate glm = Of(ReadFixture("glm.jinja"));
  EXPECT_THAT(Turns(glm, kCalls, kTools),
              HasSubstr("<|assistant|>⟦get\n{\"place\": \"Bern\"}⟧<|observation|>\nrain"
                        "<|assistant|>⟦\nIt rains.⟧"));
  const std::string calls =
      R"([{"role": "user", "content": "a"},
          {"role": "assistant", "content": "I look.", "tool_calls": [
              {"function": {"name": "f", "arguments": {"x": [1, "é"]}}}, {"function": {"name": "g"}}]},
          {"role": "observation", "content": "1"}, {"role": "tool", "content": "2"}])";
  EXPECT_EQ(Turns(glm, calls),
            "[gMASK]<sop><|user|>\na<|assistant|>⟦\nI look.<|assistant|>f\n{\"x\": [1, \"é\"]}"
            "<|assistant|>g\n{}⟧<|observation|>\n1<|observation|>\n2");
  const RenderedConversation chat = glm.Render(OrderedJson::parse(kCalls), nullptr);
  EXPECT_THAT(chat.readings(),
              testing::ElementsAre("tool calls as messages", "role tool as observation"));
  // A conversation that is written in the way of the template is rendered as it is.
  const RenderedConversation own =
      glm.Render(OrderedJson::parse(R"([{"role": "assistant", "metadata": "f", "content": "{}"},
                             {"role": "observation", "content": "1"}])"),
                 nullptr);
  EXPECT_EQ(own.text(), "[gMASK]<sop><|assistant|>f\n{}<|observation|>\n1");
  EXPECT_THAT(own.readings(), testing::IsEmpty());
}

// Falcon 3's template writes a call without text behind no header.
TEST_F(ChatTemplateTest, TurnsWithToolCallsAsALiteral) {
  const std::string shown = Turns(Fixture("falcon3"), kCalls, kTools);
  EXPECT_THAT(shown, HasSubstr("⟦\n<tool_call>\n[\n  {\n"));
  EXPECT_THAT(shown, HasSubstr("\n]\n</tool_call></s>⟧\n<|assistant|>\n<tool_response>\nrain\n"
                               "</tool_response>\n<|assistant|>\n⟦It rains.</s>⟧\n"));
}

// Contents that repeat, that are empty, or that look like the template's own text.
TEST_F(ChatTemplateTest, TurnsOfAwkwardContents) {
  for (const char* name : {"chatml", "qwen3", "mistral", "phi3", "llama2", "deepseek", "gemma"}) {
    SCOPED_TRACE(name);
    const ChatTemplate chat = Fixture(name);
    for (const std::string content : {"Xylem", "quartz", "Hi", "X", "m", "z", "é世", "No</s>No"}) {
      const OrderedJson messages = {{{"role", "user"}, {"content", content}},
                                    {{"role", "assistant"}, {"content", content}},
                                    {{"role", "user"}, {"content", content}},
                                    {{"role", "assistant"}, {"content", content}}};
      const RenderedConversation rendered = chat.Render(messages, nullptr);
      ASSERT_EQ(rendered.turns().size(), 2U) << content;
      for (const ChatSpan& span : rendered.turns()) {
        const std::string turn = rendered.text().substr(span.begin, span.end - span.begin);
        EXPECT_THAT(turn, HasSubstr(content));
        EXPECT_THAT(turn, testing::Not(HasSubstr("ssistant")));
        EXPECT_THAT(turn, testing::Not(HasSubstr("user")));
      }
    }
  }
}

// Tags that begin alike: the turn begins before the tag, not after the letters that they share.
TEST_F(ChatTemplateTest, TurnsBeginBeforeATagThatThePromptDoesNotHave) {
  const ChatTemplate chat =
      Of("{% for m in messages %}<|im_start|>{{ m.role }}\n"
         "{% if m.tool_calls %}<tool_call>{{ m.tool_calls[0].function.name }}</tool_call>"
         "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
         "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}");
  EXPECT_THAT(Turns(chat, kCalls),
              HasSubstr("<|im_start|>assistant\n⟦<tool_call>get</tool_call><|im_end|>⟧"));
}

TEST_F(ChatTemplateTest, PromptAndVariables) {
  const OrderedJson messages = {{{"role", "user"}, {"content", "Hi"}}};
  EXPECT_EQ(Fixture("qwen3").Prompt(messages, nullptr),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  const ChatTemplate quiet(ReadFixture("chat/qwen3.jinja"), tokenizer_,
                           {.variables = R"({"enable_thinking": false, "messages": "not these"})"});
  EXPECT_EQ(quiet.Prompt(messages, nullptr),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
  EXPECT_NE(quiet.source(), Fixture("qwen3").source());
  EXPECT_EQ(Of("{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}").Prompt(nullptr, nullptr),
            "<s></s>False");
}

TEST_F(ChatTemplateTest, TokenThatEndsATurn) {
  EXPECT_EQ(Fixture("chatml").turn_end(), kImEnd);
  EXPECT_EQ(Fixture("llama3").turn_end(), tokenizer_.IdOf("<|eot_id|>"));
  EXPECT_EQ(Fixture("llama2").turn_end(), kEos);
  EXPECT_EQ(Of("{{ messages[0].content }}").turn_end(), std::nullopt);
  EXPECT_EQ(Of("{{ raise_exception('never') }}").turn_end(), std::nullopt);
}

TEST_F(ChatTemplateTest, IsChosenByTheUserElseTheCheckpoints) {
  const auto load = [](const ChatFields& fields, const Tokenizer& tokenizer) {
    return LoadChatTemplate(fields, tokenizer, ChatClock::kFixed);
  };
  EXPECT_EQ(load({}, tokenizer_), nullptr);
  const Tokenizer with = MakeTestTokenizer({.chat_template = "own"});
  EXPECT_EQ(load({}, with)->text(), "own");
  EXPECT_EQ(load({.chat_template = "default"}, with)->text(), "own");
  DataFolder folder;
  const std::string file = folder.Write("t.jinja", "{{ strftime_now('%Y-%m-%d') }}").path.string();
  EXPECT_EQ(load({.chat_template = file}, with)->Prompt(nullptr, nullptr), "2024-07-26");
  EXPECT_EQ(load({.chat_template = file, .chat_template_date = "2025-02-28"}, with)
                ->Prompt(nullptr, nullptr),
            "2025-02-28");
  const auto refuse = [&](const ChatFields& fields, const std::string& part) {
    ExpectRefused([&] { load(fields, with); }, part);
  };
  refuse({.chat_template = "chatmll"}, "'chatmll' is neither a file nor the name of a template");
  refuse({.chat_template_kwargs = "[1]"}, "chat_template_kwargs: expected a JSON object");
  for (const char* day : {"2025-02-30", "2025-2-3", "today", "2025-02-28T", "2025-13-01"}) {
    refuse({.chat_template_date = day}, "chat_template_date: expected a day");
  }
  const std::string bad = folder.Write("bad.jinja", "line\n  {% frobnicate %}").path.string();
  refuse({.chat_template = bad}, "bad.jinja:2:6: ");
  // One that the checkpoint brings is refused where it is needed, not before.
  const Tokenizer broken = MakeTestTokenizer({.chat_template = "{% if %}"});
  const auto chat = load({}, broken);
  ExpectRefused([&] { chat->Prompt(nullptr, nullptr); }, "chat_template:1:");
}

TEST_F(ChatTemplateTest, PlainRefusesAMisspeltRole) {
  const auto plain = LoadChatTemplate({.chat_template = "plain"}, tokenizer_, ChatClock::kFixed);
  const auto messages = OrderedJson::parse(R"([{"role": "asistant", "content": "Hi"}])");
  ExpectRefused([&] { plain->Render(messages, nullptr); }, "not asistant");
}

TEST_F(ChatTemplateTest, TemplateForToolsIsUsedWithTools) {
  auto chat = Of("plain");
  chat.SetToolTemplate(std::make_unique<ChatTemplate>("tools", tokenizer_));
  EXPECT_EQ(chat.Render(OrderedJson::array(), nullptr).text(), "plain");
  EXPECT_EQ(chat.Render(OrderedJson::array(), OrderedJson::parse(kTools)).text(), "tools");
  EXPECT_EQ(chat.Prompt(OrderedJson::array(), OrderedJson::parse(kTools)), "tools");
}

}  // namespace
}  // namespace qlora
