#include "data/audit/stripped_thoughts.h"

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/text.h"
#include "prompt/known_fields.h"

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

bool Shows(const RenderedConversation& chat, const ChatSpan& answer, std::string_view thoughts) {
  const std::string_view text = chat.text();
  return text.substr(answer.begin, answer.end - answer.begin).find(thoughts) != text.npos;
}

// True when the template shows the thoughts of message m if the conversation ends with it.
bool ShowsAsLast(RenderedConversation& chat, std::size_t m, std::string_view thoughts) {
  const std::optional<RenderedConversation> ended = chat.With([m](Conversation& other) {
    other.Shorten(m + 1);
    other.trained.back() = true;
  });
  return ended && !ended->turns().empty() && Shows(*ended, ended->turns().back(), thoughts);
}

}  // namespace

std::vector<std::size_t> FindStrippedThoughts(RenderedConversation& chat) {
  const OrderedJson& messages = chat.conversation().messages;
  std::vector<std::size_t> stripped;
  // Of answers with calls, and without: a template treats all answers of a kind alike, so that the
  // first one decides.
  std::array<std::optional<bool>, 2> shows_last;
  for (const ChatSpan& answer : chat.turns()) {
    const std::size_t m = answer.message;
    if (m + 1 == messages.size()) continue;
    const std::string_view thoughts = ThoughtsOf(messages[m]);
    if (thoughts.empty() || Shows(chat, answer, thoughts)) continue;
    std::optional<bool>& shows = shows_last[messages[m].contains("tool_calls") ? 1 : 0];
    if (!shows) shows = ShowsAsLast(chat, m, thoughts);
    if (*shows) stripped.push_back(m);
  }
  return stripped;
}

}  // namespace qlora
