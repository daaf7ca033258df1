#include "chat/dialogue.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace qlora {

// A turn without an answer is one whose answer is being made.
void Dialogue::Ask(std::string question) { turns_.push_back({std::move(question), {}}); }

void Dialogue::Answer(std::string text) { turns_.back().answer = std::move(text); }

void Dialogue::TakeBack() {
  turns_.pop_back();
  // The question that did not fit had oldest turns left out for it; they count again.
  shown_ = 0;
}

void Dialogue::Reset() {
  turns_.clear();
  shown_ = 0;
}

bool Dialogue::LeaveOutOldest() {
  // The last question always stays.
  if (shown_ + 1 >= std::ssize(turns_)) return false;
  ++shown_;
  return true;
}

OrderedJson Dialogue::Messages() const { return MessagesFrom(shown_); }

std::string Dialogue::Text() const { return TextFrom(shown_); }

OrderedJson Dialogue::Record(bool plain) const {
  // The whole conversation, including the turns that the model no longer sees.
  if (plain) return {{"text", TextFrom(0)}};
  return {{"messages", MessagesFrom(0)}};
}

OrderedJson Dialogue::MessagesFrom(std::int64_t first) const {
  OrderedJson messages = OrderedJson::array();
  const auto add = [&messages](const char* role, const std::string& content) {
    messages.push_back({{"role", role}, {"content", content}});
  };
  // The system message is never left out: it sets the subject of the conversation.
  if (!system.empty()) add("system", system);
  for (std::int64_t t = first; t < std::ssize(turns_); ++t) {
    add("user", turns_[t].question);
    if (turns_[t].answer) add("assistant", *turns_[t].answer);
  }
  return messages;
}

std::string Dialogue::TextFrom(std::int64_t first) const {
  std::string text;
  for (std::int64_t t = first; t < std::ssize(turns_); ++t) {
    text += turns_[t].question + "\n";
    if (turns_[t].answer) text += *turns_[t].answer + "\n";
  }
  return text;
}

}  // namespace qlora
