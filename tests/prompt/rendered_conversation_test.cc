// What a conversation costs in renderings, and what its variations say.
#include "prompt/rendered_conversation.h"

#include <nlohmann/json.hpp>

#include "data/data_test_util.h"

namespace qlora {
namespace {

class RenderedConversationTest : public testing::Test {
 protected:
  ChatTemplate Fixture(const std::string& name) {
    return ChatTemplate(ReadFixture("chat/" + name + ".jinja"), tokenizer_);
  }
  static Conversation Of(const char* messages, const char* tools = "null") {
    return ConversationOfMessages(
        {{"messages", OrderedJson::parse(messages)}, {"tools", OrderedJson::parse(tools)}});
  }
  std::int64_t Cost(const std::string& name, const char* messages, const char* tools = "null") {
    const ChatTemplate chat = Fixture(name);
    return RenderedConversation(chat, Of(messages, tools)).renderings();
  }

  const Tokenizer tokenizer_ = MakeTestTokenizer();
};

constexpr const char* kThreeTurns =
    R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"},
        {"role": "user", "content": "e"}, {"role": "assistant", "content": "f"}])";
constexpr const char* kThoughts =
    R"([{"role": "user", "content": "a"},
        {"role": "assistant", "reasoning_content": "why b", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "reasoning_content": "why d", "content": "d"}])";
constexpr const char* kCalls =
    R"([{"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": "get", "arguments": {"place": "Bern"}}}]},
        {"role": "tool", "content": "rain"}, {"role": "assistant", "content": "It rains."}])";
constexpr const char* kTools = R"([{"type": "function", "function": {"name": "get"}}])";

TEST_F(RenderedConversationTest, TakesFewRenderings) {
  EXPECT_EQ(Cost("chatml", kThreeTurns), 6) << "two for each turn, one of which is the text";
  EXPECT_EQ(Cost("generation", kThreeTurns), 1) << "the template marks the turns";
  EXPECT_EQ(Cost("qwen2", kCalls, kTools), 6) << "one more asks whether results are shown, and one "
                                                 "whether a content that says nothing is";
  EXPECT_EQ(Cost("llama3", kCalls, kTools), 6);
  EXPECT_EQ(Cost("reasoning", kThoughts), 12) << "the first answer is shown in another way";
}

TEST_F(RenderedConversationTest, PartsAreGivenToTemplatesThatReadThem) {
  const auto text_by = [this](const std::string& content) {
    const ChatTemplate chat(
        "{% for m in messages %}<{{ m.role }}>" + content +
            "</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
        tokenizer_);
    return RenderedConversation(chat, Of(R"([
        {"role": "user", "content": [{"type": "text", "text": "Look:"}, {"text": " here "}]},
        {"role": "assistant", "content": [{"type": "text", "text": "a "}, "b"]}])"))
        .text();
  };
  const std::string trims_each =
      "{% if m.content is string %}{{ m.content | trim }}{% else %}"
      "{% for part in m.content %}{{ part.text | trim }}{% endfor %}{% endif %}";
  EXPECT_EQ(text_by(trims_each), "<user>Look:here</s><assistant>ab</s>");
  EXPECT_EQ(text_by("{{ m.content }}"), "<user>Look: here </s><assistant>a b</s>");
  EXPECT_EQ(text_by("{{ m.content | trim }}"), "<user>Look: here</s><assistant>a b</s>");
}

// Beside a message that has no content, which gets none.
TEST_F(RenderedConversationTest, PartsAreGivenBesideCallsAlone) {
  const ChatTemplate chat(
      "{% for m in messages %}<{{ m.role }}>{% if m.content is defined %}"
      "{% if m.content is string %}[{{ m.content | trim }}]{% else %}["
      "{% for part in m.content %}{{ part.text | trim }}{% endfor %}]{% endif %}{% endif %}"
      "{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% endif %}</s>{% endfor %}",
      tokenizer_);
  const RenderedConversation rendered(chat, Of(R"([
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"text": " b "}]},
      {"role": "assistant", "tool_calls": [{"function": {"name": "get", "arguments": {}}}]},
      {"role": "tool", "content": "rain"}, {"role": "assistant", "content": "It rains."}])"));
  EXPECT_EQ(rendered.text(),
            "<user>[ab]</s><assistant>get</s><tool>[rain]</s><assistant>[It rains.]</s>");
}

TEST_F(RenderedConversationTest, TurnsThatAreNotTrainedAreNotLookedFor) {
  Conversation last = Of(kThreeTurns);
  last.trained = {false, false, false, false, false, true};
  const ChatTemplate chatml = Fixture("chatml");
  const RenderedConversation appended(chatml, last);
  ASSERT_EQ(appended.turns().size(), 1U);
  EXPECT_EQ(appended.turns()[0].message, 5U);
  EXPECT_EQ(appended.renderings(), 2);
}

TEST_F(RenderedConversationTest, VariationsHaveTheirOwnTextAndNoTrainedTurns) {
  const ChatTemplate chat = Fixture("chatml");
  RenderedConversation rendered(chat, Of(kThreeTurns));
  const std::int64_t alone = rendered.renderings();
  const auto other = rendered.With([](Conversation& c) { c.messages[2]["content"] = "new"; });
  ASSERT_TRUE(other);
  EXPECT_NE(other->text(), rendered.text());
  EXPECT_TRUE(other->turns().empty());
  EXPECT_EQ(rendered.renderings() - alone, other->renderings());
  const auto ended = rendered.With([](Conversation& c) {
    c.Shorten(2);
    c.trained.back() = true;
  });
  ASSERT_TRUE(ended);
  ASSERT_EQ(ended->turns().size(), 1U);
  EXPECT_EQ(ended->turns().back().message, 1U);
  EXPECT_TRUE(rendered.text().starts_with(ended->text()));

  const ChatTemplate picky(
      "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('no') }}{% endif %}"
      "{{ m.content }}{% endfor %}",
      tokenizer_);
  RenderedConversation good(picky, Of(kThreeTurns));
  EXPECT_FALSE(good.With([](Conversation& c) { c.messages[0]["content"] = "bad"; }));
}

}  // namespace
}  // namespace qlora
