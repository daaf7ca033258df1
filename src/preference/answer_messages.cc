#include "preference/answer_messages.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "base/check.h"
#include "base/text.h"
#include "prompt/known_fields.h"

namespace qlora {
namespace {

std::string RoleOf(const OrderedJson& message) {
  for (const char* key : {"role", "from"}) {
    if (message.is_object() && message.contains(key) && message[key].is_string()) {
      return std::string(RoleOfTemplates(message[key].get_ref<const std::string&>()));
    }
  }
  return "";
}

}  // namespace

bool IsAnswer(const OrderedJson& message) {
  const std::string role = RoleOf(message);
  return role == "assistant" || role == kCallRole;
}

std::string_view KindOf(const OrderedJson& value) {
  if (value.is_string()) return "text";
  if (value.is_object()) return "a message";
  return value.is_array() ? "a list of messages" : std::string_view(value.type_name());
}

void CheckAnswer(const OrderedJson& answer, std::string_view name) {
  if (answer.is_string()) {
    if (answer.get_ref<const std::string&>().empty()) {
      ThrowInvalidInput("field '{}' is empty, expected an answer; leave the record out", name);
    }
    return;
  }
  if (answer.is_object()) {
    if (IsAnswer(answer)) return;
    ThrowInvalidInput("field '{}': expected a message of the assistant, found role '{}'", name,
                      RoleOf(answer));
  }
  if (!answer.is_array()) {
    ThrowInvalidInput("field '{}': expected text, a message or a list of messages, found {}", name,
                      KindOf(answer));
  }
  if (answer.empty()) ThrowInvalidInput("field '{}' is an empty list, expected messages", name);
  if (IsAnswer(answer.back())) return;
  ThrowInvalidInput("field '{}': the last message must be the assistant's, found role '{}'", name,
                    RoleOf(answer.back()));
}

void CheckPrompt(const OrderedJson& turns, std::string_view name) {
  if (!turns.is_array()) {
    ThrowInvalidInput(
        "field '{}': expected a list of messages, as the answers are messages, "
        "found {}",
        name, KindOf(turns));
  }
  if (turns.empty() || !IsAnswer(turns.back())) return;
  ThrowInvalidInput(
      "field '{}' ends with a turn of the assistant, expected one of the user or a tool: the "
      "answer comes next",
      name);
}

OrderedJson MessagesOf(const OrderedJson& answer) {
  if (answer.is_array()) return answer;
  if (answer.is_object()) return OrderedJson::array({answer});
  return OrderedJson::array({{{"role", "assistant"}, {"content", answer}}});
}

std::size_t CommonMessages(const OrderedJson& chosen, const OrderedJson& rejected) {
  std::size_t common = 0;
  const std::size_t most = std::min(chosen.size(), rejected.size());
  while (common < most && chosen[common] == rejected[common]) ++common;
  if (common == most) common = most - 1;  // the last messages of the shorter one are its answer
  while (common > 0 && (!IsAnswer(chosen[common]) || !IsAnswer(rejected[common]))) --common;
  return common;
}

OrderedJson Slice(const OrderedJson& list, std::size_t begin, std::size_t end) {
  OrderedJson part = OrderedJson::array();
  for (std::size_t i = begin; i < end; ++i) part.push_back(list[i]);
  return part;
}

bool BeginsWith(const OrderedJson& list, const OrderedJson& prefix) {
  return list.size() > prefix.size() && Slice(list, 0, prefix.size()) == prefix;
}

bool HasContent(const OrderedJson& messages, const std::string& text) {
  return std::ranges::any_of(messages, [&](const OrderedJson& message) {
    for (const char* key : {"content", "value"}) {
      const bool is_text = message.is_object() && message.contains(key) && message[key].is_string();
      if (is_text && Trim(message[key].get_ref<const std::string&>()) == Trim(text)) return true;
    }
    return false;
  });
}

OrderedJson AskedIn(const OrderedJson& answer) {
  OrderedJson asked = OrderedJson::array();
  for (const OrderedJson& message : answer) {
    const std::string role = RoleOf(message);
    if (role == "user" || role == "system") asked.push_back(message);
  }
  return asked;
}

}  // namespace qlora
