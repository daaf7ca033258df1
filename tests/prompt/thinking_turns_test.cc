// Turns of templates that hide, open or close thoughts.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "data/data_test_util.h"
#include "prompt/rendered_conversation.h"

namespace qlora {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;

class ThinkingTurnsTest : public testing::Test {
 protected:
  ChatTemplate Thinker(const std::string& text, const std::string& variables = "") {
    return ChatTemplate(text, tokenizer_, {.variables = variables});
  }
  ChatTemplate ThinkerOf(const std::string& fixture, const std::string& variables = "") {
    return Thinker(ReadFixture("chat/" + fixture + ".jinja"), variables);
  }

  // The conversation with brackets around what the assistant wrote.
  static std::string Bracketed(const RenderedConversation& chat) {
    std::string shown = chat.text();
    std::vector<ChatSpan> turns(chat.turns().begin(), chat.turns().end());
    std::reverse(turns.begin(), turns.end());
    for (const ChatSpan& turn : turns) {
      shown.insert(turn.end, turn.open_end ? "…⟧" : "⟧");
      shown.insert(turn.begin, "⟦");
    }
    return shown;
  }
  static std::string Bracketed(const ChatTemplate& chat, const std::string& messages) {
    return Bracketed(chat.Render(OrderedJson::parse(messages), nullptr));
  }

  const Tokenizer tokenizer_ = MakeTestTokenizer(
      {.special = {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>",
                   "<|turn>", "<turn|>", "<|tool_response>", "<tool_response|>"}});
};

constexpr const char* kPlainTalk =
    R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}])";
constexpr const char* kThoughtTalk =
    R"([{"role": "user", "content": "a"},
        {"role": "assistant", "reasoning_content": "why b", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "reasoning_content": "why d", "content": "d"}])";
constexpr const char* kCallTalk =
    R"([{"role": "user", "content": "a"},
        {"role": "assistant", "reasoning_content": "look", "content": "",
         "tool_calls": [{"function": {"name": "rain", "arguments": {"at": "Bern"}}}]},
        {"role": "tool", "content": "much rain"},
        {"role": "assistant", "reasoning_content": "wet", "content": "It rains."}])";

// No answer ends in <|end|>, with which earlier ones are closed.
TEST_F(ThinkingTurnsTest, LastAnswerEndsInAnotherToken) {
  const ChatTemplate chat = ThinkerOf("harmony");
  EXPECT_THAT(Bracketed(chat, kPlainTalk),
              EndsWith("<|start|>user<|message|>a<|end|>"
                       "<|start|>assistant⟦<|channel|>final<|message|>b…⟧<|end|>"
                       "<|start|>user<|message|>c<|end|>"
                       "<|start|>assistant⟦<|channel|>final<|message|>d<|return|>⟧"));
  EXPECT_THAT(Bracketed(chat, kThoughtTalk),
              EndsWith("<|start|>assistant⟦<|channel|>final<|message|>b…⟧<|end|>"
                       "<|start|>user<|message|>c<|end|>"
                       "<|start|>assistant⟦<|channel|>analysis<|message|>why d<|end|>"
                       "<|start|>assistant<|channel|>final<|message|>d<|return|>⟧"));
}

// The name of the function stands in the result too, which is none of the call.
TEST_F(ThinkingTurnsTest, ResultThatNamesTheFunctionIsNotOfTheCall) {
  EXPECT_THAT(Bracketed(ThinkerOf("harmony"), kCallTalk),
              EndsWith("<|start|>assistant⟦ to=functions.rain<|channel|>commentary<|message|>"
                       "{\"at\": \"Bern\"}<|call|>⟧"
                       "<|start|>functions.rain to=assistant<|message|>\"much rain\"<|end|>"
                       "<|start|>assistant⟦<|channel|>analysis<|message|>wet<|end|>"
                       "<|start|>assistant<|channel|>final<|message|>It rains.<|return|>⟧"));
  EXPECT_EQ(Bracketed(ThinkerOf("channels"), kCallTalk),
            "<s><|turn>user\na<turn|>\n<|turn>model\n"
            "⟦<|channel>thought\nlook\n<channel|><|tool_call>call:rain{at:'Bern'}<tool_call|>"
            "<|tool_response>⟧response:rain'much rain'<tool_response|>⟦It rains.<turn|>⟧\n");
}

// Content that the template puts behind the result is left out, not the result learnt.
TEST_F(ThinkingTurnsTest, TurnEndsBeforeAResultInItsMidst) {
  OrderedJson messages = OrderedJson::parse(kCallTalk);
  messages[1]["content"] = "I look.";
  const RenderedConversation rendered = ThinkerOf("channels").Render(messages, nullptr);
  EXPECT_THAT(Bracketed(rendered),
              HasSubstr("call:rain{at:'Bern'}<tool_call|><|tool_response>⟧response:rain'much rain'"
                        "<tool_response|>I look.<turn|>\n⟦It rains.<turn|>⟧\n"));
}

TEST_F(ThinkingTurnsTest, ClosedThoughtOfThePromptIsPutBeforeTheLastAnswer) {
  const ChatTemplate chat = ThinkerOf("channels");
  EXPECT_EQ(Bracketed(chat, kPlainTalk),
            "<s><|turn>user\na<turn|>\n<|turn>model\n⟦b<turn|>⟧\n<|turn>user\nc<turn|>\n"
            "<|turn>model\n<|channel>thought\n<channel|>⟦d<turn|>⟧\n");
  const RenderedConversation rendered = chat.Render(OrderedJson::parse(kPlainTalk), nullptr);
  OrderedJson asked = OrderedJson::parse(kPlainTalk);
  asked.erase(3);
  EXPECT_EQ(rendered.text().substr(0, rendered.turns().back().begin), chat.Prompt(asked, nullptr));
  EXPECT_THAT(rendered.warnings(), IsEmpty());
  // With thoughts the prompt writes none.
  EXPECT_THAT(Bracketed(ThinkerOf("channels", R"({"enable_thinking": true})"), kPlainTalk),
              EndsWith("<|turn>model\n⟦d<turn|>⟧\n"));
}

// What the prompt writes is not trained: the opening tag, or the whole block where the run says so.
TEST_F(ThinkingTurnsTest, TagThatThePromptOpensIsOfThePrompt) {
  const std::string past = "<|im_start|>assistant\n⟦b<|im_end|>⟧\n<|im_start|>user\nc<|im_end|>\n";
  const auto tail = [&](const ChatTemplate& chat, const char* messages) {
    const std::string text = Bracketed(chat, messages);
    EXPECT_THAT(text, HasSubstr(past));
    return text.substr(text.find(past) + past.size());
  };
  EXPECT_EQ(tail(ThinkerOf("reasoning"), kThoughtTalk),
            "<|im_start|>assistant\n<think>\n⟦why d\n</think>\n\nd<|im_end|>⟧\n");
  EXPECT_EQ(tail(ThinkerOf("reasoning"), kPlainTalk),
            "<|im_start|>assistant\n<think>\n⟦\n</think>\n\nd<|im_end|>⟧\n");
  const ChatTemplate quiet = ThinkerOf("reasoning", R"({"enable_thinking": false})");
  EXPECT_EQ(tail(quiet, kPlainTalk),
            "<|im_start|>assistant\n<think>\n\n</think>\n\n⟦d<|im_end|>⟧\n");
  EXPECT_EQ(tail(quiet, kThoughtTalk),
            "<|im_start|>assistant\n<think>\n⟦why d\n</think>\n\nd<|im_end|>⟧\n");
}

TEST_F(ThinkingTurnsTest, AnswerWithoutTheThoughtThatThePromptOpensIsNamed) {
  const ChatTemplate chat = Thinker(
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
      "{% if add_generation_prompt %}<assistant><think>\n{% endif %}");
  const RenderedConversation plain = chat.Render(OrderedJson::parse(kPlainTalk), nullptr);
  EXPECT_THAT(Bracketed(plain), EndsWith("<assistant>⟦d</s>⟧"));
  EXPECT_THAT(plain.warnings(),
              ElementsAre("answers that do not begin with <think>, as the chat template's prompt "
                          "does"));
  OrderedJson messages = OrderedJson::parse(kPlainTalk);
  messages[3]["content"] = "<think>\nwhy\n</think>\nd";
  const RenderedConversation thoughtful = chat.Render(messages, nullptr);
  EXPECT_THAT(Bracketed(thoughtful), EndsWith("<assistant><think>\n⟦why\n</think>\nd</s>⟧"));
  EXPECT_THAT(thoughtful.warnings(), IsEmpty());
}

TEST_F(ThinkingTurnsTest, TwoOpenTagsAreNoClosedThought) {
  const ChatTemplate chat = Thinker(
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
      "{% if add_generation_prompt %}<assistant><think><deep>\n{% endif %}");
  const RenderedConversation plain = chat.Render(OrderedJson::parse(kPlainTalk), nullptr);
  EXPECT_THAT(Bracketed(plain), EndsWith("<assistant>⟦d</s>⟧"));
  EXPECT_THAT(plain.warnings(), ElementsAre(HasSubstr("do not begin with <think><deep>")));
}

TEST_F(ThinkingTurnsTest, ThoughtsArePartsWhereTheTemplateReadsParts) {
  const std::string parts =
      "{% for m in messages %}"
      "{% if m.content is string %}{{ '[INST]' + m.content + '[/INST]' if m.role == 'user' else "
      "m.content + eos_token }}{% else %}{% for part in m.content %}"
      "{% if part['type'] == 'thinking' %}{{ '[THINK]' + part['thinking'] + '[/THINK]' }}"
      "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{{ eos_token }}{% endif %}{% endfor %}";
  const RenderedConversation chat =
      Thinker(parts).Render(OrderedJson::parse(kThoughtTalk), nullptr);
  EXPECT_EQ(Bracketed(chat),
            "[INST]a[/INST]⟦[THINK]why b[/THINK]b</s>⟧[INST]c[/INST]⟦[THINK]why d[/THINK]d</s>⟧");
  EXPECT_THAT(chat.readings(), ElementsAre("thoughts as parts of the content"));
  // One that reads the field, and prints what it does not know.
  const std::string field =
      "{% for m in messages %}{{ m.content if m.content is string else m.content | tojson }}"
      "{{ m.thinking if loop.first }}</s>{% endfor %}";
  EXPECT_THAT(Thinker(field).Render(OrderedJson::parse(kThoughtTalk), nullptr).text(),
              HasSubstr("</s>d</s>"));
}

TEST_F(ThinkingTurnsTest, TemplatesSeeFurtherTokens) {
  const TemporaryFolder folder;
  std::ofstream(folder / "tokenizer.json") << R"({
      "added_tokens": [{"id": 0, "content": "<b>", "special": true, "lstrip": false,
                        "rstrip": false, "single_word": false, "normalized": false},
                       {"id": 1, "content": "<e>", "special": true, "lstrip": false,
                        "rstrip": false, "single_word": false, "normalized": false}],
      "model": {"type": "BPE", "vocab": {"<b>": 0, "<e>": 1}, "merges": []}})";
  std::ofstream(folder / "tokenizer_config.json")
      << R"({"cls_token": "<b>", "sep_token": {"content": "<e>"}, "mask_token": "<none>"})";
  const Tokenizer tokenizer = Tokenizer::Load(folder.path());
  const ChatTemplate chat("{{ cls_token }}{{ sep_token }}{{ mask_token is defined }}", tokenizer);
  EXPECT_EQ(chat.Prompt(OrderedJson::array(), nullptr), "<b><e>False");
}

}  // namespace
}  // namespace qlora
