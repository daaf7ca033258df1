#include "data/left_out.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "base/text.h"
#include "prompt/known_fields.h"

namespace qlora {
namespace {

using Change = std::function<void(Conversation&)>;

// True when the conversation has the same text after a change.
bool IsSameWith(RenderedConversation& chat, const Change& change) {
  const std::optional<RenderedConversation> other = chat.With(change);
  return other && other->text() == chat.text();  // without a text, the template misses something
}

bool IsSameWithout(RenderedConversation& chat, std::span<const std::string> names) {
  return IsSameWith(chat, [&](Conversation& other) {
    for (const std::string& name : names) {
      if (name == "tools") {
        other.tools = OrderedJson();
        continue;
      }
      for (OrderedJson& message : other.messages) message.erase(name);
    }
  });
}

std::vector<std::string> UnreadFields(RenderedConversation& chat, ReadFields& read) {
  const Conversation& conversation = chat.conversation();
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (read.Has(name) || std::ranges::count(names, name) > 0) return;
    names.push_back(name);
  };
  for (const OrderedJson& message : conversation.messages) {
    for (const auto& [name, value] : message.items()) {
      if (name != "role" && name != "content" && !SaysNothing(value)) add(name);
    }
  }
  if (!conversation.tools.is_null()) add("tools");
  // Mostly all of these fields are read, or none, which one rendering without all of them shows.
  if (!names.empty() && !IsSameWithout(chat, names)) {
    std::erase_if(names, [&](const std::string& name) {
      const bool unread = names.size() > 1 && IsSameWithout(chat, {&name, 1});
      if (!unread) read.Add(name);
      return !unread;
    });
  }
  // Variables mostly change prompts alone.
  for (const auto& [name, value] : conversation.variables.items()) {
    if (!chat.ReadsVariable(name)) names.push_back("chat_template_kwargs: " + name);
  }
  return names;
}

// A message is hidden when the text does not have its content, and another content gives the same
// text. Says as well when there is nothing to learn but to stop.
void NoteHiddenMessages(RenderedConversation& chat, SampleNotes& notes) {
  const Conversation& conversation = chat.conversation();
  for (std::size_t m = 0; m < conversation.messages.size(); ++m) {
    const OrderedJson& message = conversation.messages[m];
    const OrderedJson& content = message.at("content");
    const std::string_view said =
        content.is_string() ? Trim(content.get_ref<const std::string&>()) : std::string_view();
    const auto calls = message.find("tool_calls");
    const bool has_calls = calls != message.end() && !SaysNothing(*calls);
    if (said.empty()) {
      if (!conversation.trained[m] || has_calls) continue;
      if (FindByMeaning(message, FieldMeaning::kThoughts)) continue;
      notes.empty_completion = true;
      notes.warnings.push_back("answers without text, of which the model learns to stop alone");
      continue;
    }
    if (chat.text().find(said) != std::string::npos) continue;
    const Change change = [m](Conversation& other) {
      other.messages[m]["content"] = "Xylem quartz";
    };
    if (!IsSameWith(chat, change)) continue;
    notes.warnings.push_back(
        fmt::format("messages of the role {}{} that the chat template does not show",
                    message.at("role").get<std::string>(), has_calls ? " with tool calls" : ""));
  }
}

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

void ReadFields::Add(const std::string& name) {
  const std::lock_guard lock(mutex_);
  names_.insert(name);
}

bool ReadFields::Has(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return names_.contains(name);
}

std::set<std::string> ReadFields::names() const {
  const std::lock_guard lock(mutex_);
  return names_;
}

void NoteLeftOut(RenderedConversation& chat, ReadFields& read, SampleNotes& notes) {
  notes.unread_fields = UnreadFields(chat, read);
  NoteHiddenMessages(chat, notes);
}

std::vector<std::size_t> FindStrippedThoughts(RenderedConversation& chat) {
  const OrderedJson& messages = chat.conversation().messages;
  std::vector<std::size_t> stripped;
  for (const ChatSpan& answer : chat.turns()) {
    const std::size_t m = answer.message;
    if (m + 1 == messages.size()) continue;
    const std::string_view thoughts = ThoughtsOf(messages[m]);
    if (thoughts.empty() || Shows(chat, answer, thoughts)) continue;
    // A template treats all answers alike, so that the first one decides.
    if (stripped.empty() && !ShowsAsLast(chat, m, thoughts)) break;
    stripped.push_back(m);
  }
  return stripped;
}

bool ShowsCalls(const OrderedJson& message, std::string_view turn) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array() || calls->empty()) return true;
  const OrderedJson& call = calls->front();
  const OrderedJson& function = call.contains("function") ? call["function"] : call;
  const auto name = function.find("name");
  if (name == function.end() || !name->is_string()) return true;
  return turn.find(name->get_ref<const std::string&>()) != std::string_view::npos;
}

}  // namespace qlora
