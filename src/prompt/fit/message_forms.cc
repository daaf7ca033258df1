#include "prompt/fit/message_forms.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"
#include "prompt/fit/template_names.h"
#include "prompt/known_fields.h"

namespace qlora {

void OfferThoughts(std::string_view source, OrderedJson& messages,
                   std::vector<std::string>& readings) {
  const std::vector<std::string> names = NamesOf(FieldMeaning::kThoughts);
  const auto named = [source](const std::string& name) { return NamesField(source, name); };
  const auto read = std::find_if(names.begin(), names.end(), named);
  if (read == names.end()) return;
  for (OrderedJson& message : messages) {
    if (message.at("role") != "assistant") continue;
    for (const std::string& name : names) {
      const auto thoughts = message.find(name);
      if (thoughts == message.end() || SaysNothing(*thoughts) || named(name)) continue;
      if (message.contains(*read) && !SaysNothing(message[*read])) continue;
      const OrderedJson text = *thoughts;
      message[*read] = text;
      readings.push_back(name + " as " + *read);
    }
  }
}

bool ShowsThoughts(const OrderedJson& messages, std::string_view text) {
  bool has_thoughts = false;
  for (const OrderedJson& message : messages) {
    const FoundField thoughts = FindByMeaning(message, FieldMeaning::kThoughts);
    if (!thoughts || !thoughts.value->is_string()) continue;
    has_thoughts = true;
    if (text.find(Trim(thoughts.value->get_ref<const std::string&>())) != text.npos) return true;
  }
  return !has_thoughts;
}

OrderedJson WithThoughtParts(OrderedJson messages) {
  for (OrderedJson& message : messages) {
    const FoundField thoughts = FindByMeaning(message, FieldMeaning::kThoughts);
    if (!thoughts) continue;
    OrderedJson parts = OrderedJson::array();
    parts.push_back({{"type", "thinking"}, {"thinking", *thoughts.value}});
    const OrderedJson& content = message["content"];
    if (!SaysNothing(content)) parts.push_back({{"type", "text"}, {"text", content}});
    message["content"] = std::move(parts);
  }
  return messages;
}

OrderedJson WithTextParts(const Conversation& conversation, OrderedJson messages,
                          const std::vector<std::size_t>& origins, bool joined) {
  bool has_parts = false;
  for (std::size_t m = 0; m < messages.size(); ++m) {
    const std::size_t origin = origins.empty() ? m : origins[m];
    if (origin >= conversation.text_parts.size()) continue;
    const std::vector<std::string>& texts = conversation.text_parts[origin];
    const std::string whole = fmt::format("{}", fmt::join(texts, ""));
    // A message without a content, as of calls alone, gets none.
    const auto content = messages[m].find("content");
    if (texts.size() < 2 || content == messages[m].end() || *content != whole) continue;
    has_parts = true;
    *content = OrderedJson::array();
    for (const std::string& text : joined ? std::vector<std::string>{whole} : texts) {
      content->push_back({{"type", "text"}, {"text", text}});
    }
  }
  return has_parts ? messages : OrderedJson();
}

std::string SkippedRole(const OrderedJson& messages, std::string_view text) {
  for (const OrderedJson& message : messages) {
    const auto& role = message.at("role").get_ref<const std::string&>();
    const auto content = message.find("content");
    const bool says = content != message.end() && content->is_string();
    if (!IsRoleOfSomeTemplates(role) || !says) continue;
    if (text.find(Trim(content->get_ref<const std::string&>())) == text.npos) return role;
  }
  return {};
}

bool IsForeignRole(std::string_view source, std::string_view role) {
  return IsRoleOfSomeTemplates(role) && !NamesField(source, role) &&
         NamesField(source, RoleOfTemplates(role));
}

OrderedJson WithUsualRoles(OrderedJson messages,
                           const std::function<bool(std::string_view)>& replaced,
                           std::vector<std::string>& readings) {
  for (OrderedJson& message : messages) {
    const auto role = message.at("role").get<std::string>();
    if (!replaced(role)) continue;
    message["role"] = RoleOfTemplates(role);
    readings.push_back("role " + role + " as " + std::string(RoleOfTemplates(role)));
  }
  return messages;
}

OrderedJson WithRole(OrderedJson messages, std::string_view from, std::string_view to) {
  for (OrderedJson& message : messages) {
    if (message.at("role") == from) message["role"] = to;
  }
  return messages;
}

}  // namespace qlora
