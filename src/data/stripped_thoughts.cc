#include "data/stripped_thoughts.h"

#include <string>
#include <string_view>

#include "base/text.h"
#include "io/json.h"
#include "prompt/known_fields.h"
#include "qlora/error.h"

namespace qlora {
namespace {

// Returns the thoughts of an answer: of their field, or between tags in the content; "" for none.
std::string_view ThoughtsOf(const OrderedJson& message) {
  const FoundField field = FindByMeaning(message, FieldMeaning::kThoughts);
  if (field && field.value->is_string()) return Trim(field.value->get_ref<const std::string&>());
  const auto content = message.find("content");
  if (content == message.end() || !content->is_string()) return {};
  constexpr std::string_view kOpen = "<think>";
  const std::string_view text = content->get_ref<const std::string&>();
  const std::size_t close = text.find("</think>");
  if (close == text.npos) return {};
  const std::size_t open = text.substr(0, close).find(kOpen);
  const std::size_t begin = open == text.npos ? 0 : open + kOpen.size();
  return Trim(text.substr(begin, close - begin));
}

bool Shows(const RenderedChat& rendered, const ChatSpan& answer, std::string_view thoughts) {
  const std::string_view text = rendered.text;
  return text.substr(answer.begin, answer.end - answer.begin).find(thoughts) != text.npos;
}

// True when the template shows the thoughts of `answer` as the last message.
bool ShowsAsLast(const ChatRenderer& chat, Conversation conversation, std::size_t answer,
                 std::string_view thoughts) {
  conversation.Shorten(answer + 1);
  try {
    const RenderedChat rendered = chat.RenderConversation(conversation);
    return !rendered.assistant.empty() && rendered.assistant.back().message == answer &&
           Shows(rendered, rendered.assistant.back(), thoughts);
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::vector<std::size_t> FindStrippedThoughts(const ChatRenderer& chat,
                                              const Conversation& conversation,
                                              const RenderedChat& rendered) {
  std::vector<std::size_t> stripped;
  for (const ChatSpan& answer : rendered.assistant) {
    const std::size_t m = answer.message;
    if (!conversation.trained.at(m) || m + 1 == conversation.messages.size()) continue;
    const std::string_view thoughts = ThoughtsOf(conversation.messages[m]);
    if (thoughts.empty() || Shows(rendered, answer, thoughts)) continue;
    // A template treats all answers alike, so that the first one decides.
    if (stripped.empty() && !ShowsAsLast(chat, conversation, m, thoughts)) break;
    stripped.push_back(m);
  }
  return stripped;
}

}  // namespace qlora
