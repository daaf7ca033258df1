#include "prompt/template_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <exception>
#include <utility>

#include "base/text.h"
#include "prompt/calls_as_messages.h"
#include "prompt/known_fields.h"
#include "qlora/error.h"

namespace qlora {
namespace {

using Render = std::function<JinjaOutput(const OrderedJson&)>;

bool IsNamePart(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Calls found(begin, end) for each place of the whole word, until it returns true.
template <typename Found>
bool AnyWord(std::string_view text, std::string_view word, const Found& found) {
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool whole =
        (at == 0 || !IsNamePart(text[at - 1])) && (end == text.size() || !IsNamePart(text[end]));
    if (whole && found(at, end)) return true;
  }
  return false;
}

// Gives thoughts a second name where the template does not seem to read them under their own; the
// source may put the name together.
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

// Returns the text of a value as Python's json.dumps writes it.
std::string PythonJson(const OrderedJson& value) {
  const OrderedJson argument = value;
  const std::array<JinjaVariable, 1> variables = {{{"value", &argument}}};
  return JinjaTemplate("{{ value | tojson }}").Render(variables).text;
}

// Calls body(arguments, text of the record or "") for the arguments of each call.
template <typename Messages, typename Body>
void ForEachArguments(const Conversation& conversation, Messages& messages, const Body& body) {
  for (std::size_t m = 0; m < messages.size(); ++m) {
    const auto calls = messages[m].find("tool_calls");
    if (calls == messages[m].end() || !calls->is_array()) continue;
    for (std::size_t c = 0; c < calls->size(); ++c) {
      auto& call = (*calls)[c];
      if (!call.is_object()) continue;
      auto& function = call.contains("function") ? call["function"] : call;
      if (!function.is_object() || !function.contains("arguments")) continue;
      const bool has_text =
          m < conversation.argument_texts.size() && c < conversation.argument_texts[m].size();
      body(function["arguments"], has_text ? conversation.argument_texts[m][c] : std::string());
    }
  }
}

OrderedJson WithTextArguments(const Conversation& conversation, OrderedJson messages) {
  ForEachArguments(conversation, messages, [](OrderedJson& arguments, const std::string& text) {
    if (!arguments.is_string()) arguments = text.empty() ? PythonJson(arguments) : text;
  });
  return messages;
}

// True when the text shows arguments as Python shows a dict, {'name': ...}, which no model writes.
bool ShowsDict(const Conversation& conversation, const OrderedJson& messages,
               std::string_view text) {
  bool shows = false;
  ForEachArguments(conversation, messages, [&](const OrderedJson& arguments, const std::string&) {
    if (!arguments.is_object() || arguments.empty()) return;
    const std::string begin = "{'" + arguments.begin().key() + "': ";
    shows = shows || text.find(begin) != std::string_view::npos;
  });
  return shows;
}

// The first role that the text does not show and that has a usual name; "" when there is none.
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

// True when the text shows the thoughts of an answer, or no answer has any.
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

// Returns the messages with thoughts as parts of the contents, before the text.
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

OrderedJson WithUsualRoles(OrderedJson messages, std::vector<std::string>& readings) {
  for (OrderedJson& message : messages) {
    const auto role = message.at("role").get<std::string>();
    if (!IsRoleOfSomeTemplates(role)) continue;
    message["role"] = RoleOfTemplates(role);
    readings.push_back("role " + role + " as " + std::string(RoleOfTemplates(role)));
  }
  return messages;
}

constexpr std::string_view kTool = "tool";

// True where messages of a role are there, and other contents of theirs are not shown.
bool HidesRole(OrderedJson messages, std::string_view role, const Render& render) {
  constexpr std::string_view kProbe = "Xylem quartz";
  bool has_role = false;
  for (OrderedJson& message : messages) {
    if (message.at("role") != role) continue;
    message["content"] = kProbe;
    has_role = true;
  }
  if (!has_role) return false;
  try {
    return render(messages).text.find(kProbe) == std::string::npos;
  } catch (const Error&) {
    return false;
  }
}

OrderedJson WithRole(OrderedJson messages, std::string_view from, std::string_view to) {
  for (OrderedJson& message : messages) {
    if (message.at("role") == from) message["role"] = to;
  }
  return messages;
}

}  // namespace

FittedConversation FitToTemplate(const Conversation& conversation, std::string_view source,
                                 const Render& render) {
  FittedConversation fitted{.messages = conversation.messages, .output = {}};
  if (ReadsCallsAsMessages(source)) {
    SplitMessages split = CallsAsMessages(conversation, PythonJson);
    if (split.messages != fitted.messages) {
      fitted.messages = std::move(split.messages);
      fitted.origins = std::move(split.origins);
      fitted.readings.push_back("tool calls as messages");
    }
  }
  OfferThoughts(source, fitted.messages, fitted.readings);
  const std::vector<std::string> offered = fitted.readings;
  std::exception_ptr refusal;
  // Renders `messages` in place of what there is. False, and no change, when they are refused.
  const auto take = [&](OrderedJson messages, const std::vector<std::string>& readings) {
    try {
      fitted.output = render(messages);
    } catch (const Error&) {
      if (!refusal) refusal = std::current_exception();
      return false;
    }
    fitted.messages = std::move(messages);
    fitted.readings.insert(fitted.readings.end(), readings.begin(), readings.end());
    return true;
  };
  const std::vector<std::string> as_text = {"arguments of tool calls as text"};
  const auto fits = [&](const OrderedJson& messages, const std::vector<std::string>& readings) {
    if (take(messages, readings)) return true;
    OrderedJson texts = WithTextArguments(conversation, messages);
    if (texts == messages) return false;
    std::vector<std::string> both = readings;
    both.insert(both.end(), as_text.begin(), as_text.end());
    return take(std::move(texts), both);
  };
  bool done = fits(fitted.messages, {});
  if (!done || !SkippedRole(fitted.messages, fitted.output.text).empty()) {
    std::vector<std::string> readings;
    const OrderedJson usual = WithUsualRoles(fitted.messages, readings);
    if (!readings.empty() && fits(usual, readings)) done = true;
  }
  if (!done) std::rethrow_exception(refusal);
  // Results of tools that are hidden, under the other names of their role.
  for (const std::string& name : OtherNamesOfRole(kTool)) {
    if (!NamesField(source, name)) continue;
    if (!HidesRole(fitted.messages, kTool, render)) break;
    const FittedConversation before = fitted;
    const bool taken =
        fits(WithRole(fitted.messages, kTool, name), {fmt::format("role {} as {}", kTool, name)});
    if (taken && HidesRole(fitted.messages, name, render)) fitted = before;
  }
  if (ShowsDict(conversation, fitted.messages, fitted.output.text)) {
    const FittedConversation objects = fitted;
    const bool taken = take(WithTextArguments(conversation, fitted.messages), as_text);
    // The dict was a word of the conversation.
    if (taken && ShowsDict(conversation, objects.messages, fitted.output.text)) fitted = objects;
  }
  // A template that shows them as fields may leave earlier ones out.
  if (NamesField(source, "thinking") && !ShowsThoughts(fitted.messages, fitted.output.text)) {
    const FittedConversation as_fields = fitted;
    std::erase_if(fitted.readings, [&](const std::string& reading) {
      return std::ranges::count(offered, reading) > 0;  // no field is read
    });
    const bool taken =
        take(WithThoughtParts(fitted.messages), {"thoughts as parts of the content"});
    const std::string& text = fitted.output.text;
    const bool prints_parts =
        text.find("'thinking': ") != text.npos || text.find("\"thinking\": ") != text.npos;
    if (!taken || prints_parts || !ShowsThoughts(fitted.messages, text)) return as_fields;
  }
  return fitted;
}

bool HasWholeWord(std::string_view text, std::string_view word) {
  return AnyWord(text, word, [](std::size_t, std::size_t) { return true; });
}

bool NamesField(std::string_view source, std::string_view name) {
  return AnyWord(source, name, [source](std::size_t begin, std::size_t end) {
    const char before = begin == 0 ? ' ' : source[begin - 1];
    const char after = end == source.size() ? ' ' : source[end];
    return before == '.' || ((before == '\'' || before == '"') && after == before);
  });
}

}  // namespace qlora
