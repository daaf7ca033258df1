#include "prompt/rendered_conversation.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "prompt/fit/calls_as_messages.h"
#include "prompt/missing_prompt.h"
#include "prompt/part_renderings.h"

namespace qlora {
namespace {

// The marks are the user's word about what is trained on: where they cannot be followed, nothing is
// guessed in their place.
std::vector<ChatSpan> MarkedTurns(const JinjaOutput& output, const OrderedJson& messages) {
  if (output.generation_lost) {
    ThrowInvalidInput(
        "the text that {{% generation %}} marks goes through a function that changes it, so that "
        "its place in the conversation is not known; write the tags around the text as it is put "
        "out");
  }
  std::vector<std::size_t> answers;
  for (std::size_t m = 0; m < messages.size(); ++m) {
    if (messages[m].at("role") == "assistant") answers.push_back(m);
  }
  // A template that does not loop over messages may still mark each answer.
  const bool one_each = answers.size() == output.generation.size();
  std::vector<ChatSpan> turns;
  for (std::size_t s = 0; s < output.generation.size(); ++s) {
    const JinjaSpan& span = output.generation[s];
    if (!span.message && !one_each) {
      ThrowInvalidInput(
          "cannot tell which message a {{% generation %}} block of the chat template belongs to; "
          "write it in a loop over messages");
    }
    // A variable may hold another message than the one that the block shows.
    const bool names_answer = span.message && messages[*span.message].at("role") == "assistant";
    const bool in_order = one_each && !names_answer;
    turns.push_back({span.begin, span.end, in_order ? answers[s] : *span.message});
  }
  return turns;
}

}  // namespace

RenderedConversation::RenderedConversation(const ChatTemplate& chat, Conversation conversation)
    : chat_(&chat), conversation_(std::move(conversation)) {
  const ChatTemplate& used = chat.For(conversation_);
  FittedConversation fitted =
      FitToTemplate(conversation_, used.text(), [&](const OrderedJson& messages) {
        ++renderings_;
        return used.Run(messages, conversation_, TurnPrompt::kNone);
      });
  text_ = std::move(fitted.output.text);
  turns_ =
      used.has_generation() ? MarkedTurns(fitted.output, fitted.messages) : FindTurns(used, fitted);
  if (!fitted.origins.empty()) JoinTurns(fitted.origins, turns_);
  std::erase_if(turns_,
                [&](const ChatSpan& turn) { return !conversation_.trained.at(turn.message); });
  readings_ = std::move(fitted.readings);
}

// Finds the turns in the text, and completes it where the last message is an answer.
std::vector<ChatSpan> RenderedConversation::FindTurns(const ChatTemplate& chat,
                                                      const FittedConversation& fitted) {
  const RenderMessages render = [&](const OrderedJson& messages,
                                    TurnPrompt prompt) -> std::optional<std::string> {
    const bool names_thoughts =
        prompt == TurnPrompt::kWithThoughts || prompt == TurnPrompt::kWithoutThoughts;
    if (names_thoughts && !chat.may_think()) return std::nullopt;
    ++renderings_;
    try {
      return chat.Run(messages, conversation_, prompt).text;
    } catch (const Error&) {
      // Many templates refuse a conversation that does not end as they expect.
      return std::nullopt;
    }
  };
  const std::string text = text_;
  PartRenderings parts(render, fitted.messages, text);
  std::vector<bool> trained = conversation_.trained;
  if (!fitted.origins.empty()) {
    trained.clear();
    for (const std::size_t m : fitted.origins) trained.push_back(conversation_.trained.at(m));
  }
  std::vector<ChatSpan> turns = FindAssistantTurns(parts, trained, chat.special_tokens());
  const std::size_t last = fitted.messages.size() - 1;
  if (!turns.empty() && turns.back().message == last) {
    const std::string warning =
        CompletePrompt(parts.Text({last, TurnPrompt::kUsual}), text_, turns.back());
    if (!warning.empty() && conversation_.trained.back()) warnings_.push_back(warning);
  }
  return turns;
}

std::optional<RenderedConversation> RenderedConversation::With(
    const std::function<void(Conversation&)>& change) {
  Conversation other = conversation_;
  other.trained.assign(other.trained.size(), false);
  change(other);
  try {
    RenderedConversation rendered(*chat_, std::move(other));
    renderings_ += rendered.renderings_;
    return rendered;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace qlora
