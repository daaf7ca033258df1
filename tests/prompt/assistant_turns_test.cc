#include "prompt/assistant_turns.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "io/test_util.h"

namespace qlora {
namespace {

OrderedJson Talk(int turns) {
  OrderedJson messages = OrderedJson::array();
  for (int t = 0; t < turns; ++t) {
    messages.push_back({{"role", "user"}, {"content", "question " + std::to_string(t)}});
    messages.push_back({{"role", "assistant"}, {"content", "answer " + std::to_string(t)}});
  }
  return messages;
}

// Renders like a template that shows a thought in the last turn only, so that no turn but the last
// is appended, and counts how often.
class Renderer {
 public:
  explicit Renderer(bool shows_questions) : shows_questions_(shows_questions) {}

  std::string operator()(const OrderedJson& messages, bool prompt) {
    ++count;
    std::string text;
    for (std::size_t m = 0; m < messages.size(); ++m) {
      const bool answers = messages[m].at("role") == "assistant";
      if (!answers && !shows_questions_) continue;
      text += answers ? "<a>" : "<q>";
      if (answers && m + 1 == messages.size()) text += "(thought)";
      text += messages[m].at("content").get<std::string>() + "</>";
    }
    return prompt ? text + "<a>" : text;
  }

  int count = 0;

 private:
  bool shows_questions_;
};

std::vector<std::string> Find(Renderer& renderer, const OrderedJson& messages) {
  const std::string text = renderer(messages, false);
  const RenderMessages render = [&](const OrderedJson& some,
                                    TurnPrompt prompt) -> std::optional<std::string> {
    const bool none = prompt == TurnPrompt::kNone;
    if (!none && prompt != TurnPrompt::kUsual) return std::nullopt;
    return renderer(some, !none);
  };
  std::vector<std::string> turns;
  PartRenderings parts(render, messages, text);
  for (const ChatSpan& span :
       FindAssistantTurns(parts, std::vector<bool>(messages.size(), true), {"</>"})) {
    turns.push_back(text.substr(span.begin, span.end - span.begin));
  }
  return turns;
}

TEST(AssistantTurnsTest, LongConversationsTakeAFewRenderingsPerTurn) {
  constexpr int kTurns = 40;
  Renderer renderer(/*shows_questions=*/true);
  const std::vector<std::string> turns = Find(renderer, Talk(kTurns));
  ASSERT_EQ(std::ssize(turns), kTurns);
  EXPECT_EQ(turns[0], "answer 0</>");
  EXPECT_EQ(turns[kTurns - 1], "(thought)answer 39</>");
  EXPECT_LE(renderer.count, 6 * kTurns);
}

// Questions that the text does not show cannot be what a turn follows; not all of them are tried.
TEST(AssistantTurnsTest, HiddenMessagesDoNotMultiplyTheWork) {
  constexpr int kTurns = 40;
  Renderer renderer(/*shows_questions=*/false);
  EXPECT_EQ(std::ssize(Find(renderer, Talk(kTurns))), kTurns);
  EXPECT_LE(renderer.count, 7 * kTurns);
}

TEST(AssistantTurnsTest, ContentsThatLookLikeTheProbesAreFound) {
  for (const char* content : {"Xylem", "X", "quartz", "Xz", "qm", "xylem quartz"}) {
    OrderedJson messages = Talk(3);
    messages[1]["content"] = content;
    Renderer renderer(/*shows_questions=*/true);
    EXPECT_EQ(Find(renderer, messages)[0], content + std::string("</>"));
  }
}

}  // namespace
}  // namespace qlora
