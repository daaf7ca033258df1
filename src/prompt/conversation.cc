#include "prompt/conversation.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "io/json.h"

namespace qlora {
namespace {

// A speaker of ShareGPT and the role that templates know. A function_call has no separate role:
// it becomes an assistant's message with tool calls.
struct RoleName {
  std::string_view role;
  std::string_view from;  // separated by spaces
};
constexpr std::string_view kCallRole = "function_call";
constexpr std::string_view kAnswerers = "gpt assistant chatgpt bing bard model";
constexpr RoleName kRoles[] = {{"user", "human user"},
                               {"assistant", kAnswerers},
                               {"system", "system"},
                               {"tool", "tool observation function_response"},
                               {kCallRole, kCallRole}};

// The value of `key`, which must be text. `where` names the message, as in all functions here.
const std::string& TextOf(const OrderedJson& object, const char* key, std::string_view where) {
  const auto value = object.find(key);
  if (value == object.end()) ThrowInvalidInput("{}: '{}' is missing", where, key);
  if (!value->is_string()) {
    ThrowInvalidInput("{}: '{}': expected text, found {}", where, key, value->type_name());
  }
  return value->get_ref<const std::string&>();
}

// Returns the messages of a record, which is a list of objects under `key`.
const OrderedJson& ListOf(const OrderedJson& record, const char* key) {
  const auto list = record.find(key);
  if (list == record.end()) ThrowInvalidInput("field '{}' is missing", key);
  if (!list->is_array() || list->empty()) {
    ThrowInvalidInput("field '{}': expected a list of messages, found {}", key,
                      list->is_array() ? "an empty list" : list->type_name());
  }
  for (std::size_t m = 0; m < list->size(); ++m) {
    if (!(*list)[m].is_object()) {
      ThrowInvalidInput("{}[{}]: expected an object, found {}", key, m, (*list)[m].type_name());
    }
  }
  return *list;
}

// Returns the tools of a record: a list, or a text that holds the list as JSON, as tables must
// write it. An empty list or text is the same as none.
OrderedJson ToolsOf(const OrderedJson& record) {
  const auto field = record.find("tools");
  if (field == record.end() || field->is_null()) return nullptr;
  OrderedJson tools = *field;
  if (tools.is_string()) {
    const auto text = tools.get<std::string>();
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) return nullptr;
    tools = ParseOrderedJson(text, "field 'tools'");
  }
  if (!tools.is_array()) {
    ThrowInvalidInput("field 'tools': expected a list, found {}", tools.type_name());
  }
  return tools.empty() ? OrderedJson() : tools;
}

// The role of one of `messages`. Names of ShareGPT would leave nothing that is trained on.
const std::string& RoleOf(const OrderedJson& message, const std::string& where) {
  if (!message.contains("role") && message.contains("from")) {
    ThrowInvalidInput(
        "{}: 'role' is missing; a list of 'from' and 'value' belongs in the field 'conversations'",
        where);
  }
  const std::string& role = TextOf(message, "role", where);
  if (role != "assistant" && HasWord(kAnswerers, role)) {
    ThrowInvalidInput("{}: 'role': expected assistant for the answers of the model, found '{}'",
                      where, role);
  }
  return role;
}

// Returns a content as templates take it: text, or null. A list of text parts is joined.
OrderedJson ContentOf(const OrderedJson& content, const std::string& where) {
  if (content.is_string() || content.is_null()) return content;
  if (!content.is_array()) {
    ThrowInvalidInput("{}: 'content': expected text, found {}", where, content.type_name());
  }
  std::string text;
  for (const OrderedJson& part : content) {
    if (!part.is_object() || !part.contains("type") || part["type"] != "text") {
      ThrowInvalidInput("{}: 'content' holds a part that is not text; only text can be trained on",
                        where);
    }
    text += TextOf(part, "text", where);
  }
  return text;
}

// Arguments of tool calls as objects. OpenAI's API gives them as a text that holds JSON; templates
// print them with tojson and would print the text in quotes.
void ParseArguments(OrderedJson& message, const std::string& where) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || calls->is_null()) return;
  if (!calls->is_array()) {
    ThrowInvalidInput("{}: 'tool_calls': expected a list, found {}", where, calls->type_name());
  }
  for (OrderedJson& call : *calls) {
    if (!call.is_object()) ThrowInvalidInput("{}: 'tool_calls' holds no objects", where);
    // OpenAI's form is {"type": "function", "function": {"name", "arguments"}}; others have the
    // inner object alone.
    OrderedJson* function = &call;
    if (call.contains("function")) function = &call["function"];
    if (!function->is_object()) ThrowInvalidInput("{}: a tool call is not an object", where);
    const auto arguments = function->find("arguments");
    if (arguments != function->end() && arguments->is_string()) {
      *arguments = ParseOrderedJson(arguments->get_ref<const std::string&>(),
                                    where + ": tool-call arguments");
    }
  }
}

// True when the message is learned: the assistant's, unless its weight is 0.
bool IsTrained(const OrderedJson& message, const std::string& role, const std::string& where) {
  const auto weight = message.find("weight");
  if (weight == message.end() || weight->is_null()) return role == "assistant";
  const bool valid = weight->is_number() && (*weight == 0 || *weight == 1);
  if (!valid || role != "assistant") {
    ThrowInvalidInput("{}: 'weight' must be 0 or 1 and belong to an assistant's message", where);
  }
  return *weight == 1;
}

// Returns the message of a function_call, whose value is one call or a list of calls, as JSON.
OrderedJson CallMessage(const std::string& value, const std::string& where) {
  OrderedJson functions = ParseOrderedJson(value, where);
  if (!functions.is_array()) functions = OrderedJson::array({std::move(functions)});
  OrderedJson calls = OrderedJson::array();
  for (OrderedJson& function : functions) {
    calls.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  OrderedJson message = {{"role", "assistant"}, {"content", ""}, {"tool_calls", std::move(calls)}};
  ParseArguments(message, where);
  return message;
}

}  // namespace

Conversation ConversationOfMessages(const OrderedJson& record) {
  Conversation conversation{
      .messages = ListOf(record, "messages"), .tools = ToolsOf(record), .trained = {}};
  for (std::size_t m = 0; m < conversation.messages.size(); ++m) {
    OrderedJson& message = conversation.messages[m];
    const std::string where = fmt::format("messages[{}]", m);
    const std::string role = RoleOf(message, where);
    const OrderedJson content = message.contains("content") ? message["content"] : OrderedJson();
    message["content"] = ContentOf(content, where);
    ParseArguments(message, where);
    // An assistant may call a tool and say nothing; any other message without text is a mistake.
    const bool calls = message.contains("tool_calls") && !message["tool_calls"].empty();
    // Templates would print "None" for such a content.
    if (message["content"].is_null() && !calls) {
      ThrowInvalidInput("{}: {}", where,
                        record["messages"][m].contains("content")
                            ? "'content' is null, and there are no 'tool_calls'"
                            : "neither 'content' nor 'tool_calls'");
    }
    conversation.trained.push_back(IsTrained(message, role, where));
  }
  return conversation;
}

// Turns with the roles that templates know; a function_call becomes an assistant's message.
Conversation ConversationOfShareGpt(const OrderedJson& record) {
  Conversation conversation{
      .messages = OrderedJson::array(), .tools = ToolsOf(record), .trained = {}};
  const auto add = [&conversation](OrderedJson message, bool trained) {
    conversation.messages.push_back(std::move(message));
    conversation.trained.push_back(trained);
  };
  const auto system = record.find("system");
  if (system != record.end() && !system->is_null() && *system != "") {
    add({{"role", "system"}, {"content", TextOf(record, "system", "record")}}, false);
  }
  const OrderedJson& turns = ListOf(record, "conversations");
  for (std::size_t t = 0; t < turns.size(); ++t) {
    const OrderedJson& turn = turns[t];
    const std::string where = fmt::format("conversations[{}]", t);
    // {"from", "value"} as in ShareGPT, or {"role", "content"} as in OpenAI's form.
    const bool openai = !turn.contains("from") && turn.contains("role");
    const std::string& from = TextOf(turn, openai ? "role" : "from", where);
    const std::string& value = TextOf(turn, openai ? "content" : "value", where);
    const auto* name =
        std::find_if(std::begin(kRoles), std::end(kRoles),
                     [&](const RoleName& known) { return HasWord(known.from, from); });
    if (name == std::end(kRoles)) {
      ThrowInvalidInput(
          "{}: 'from': expected human, gpt, system, tool or function_call, found '{}'", where,
          from);
    }
    if (name->role != kCallRole) {
      const bool trained = IsTrained(turn, std::string(name->role), where);
      add({{"role", name->role}, {"content", value}}, trained);
      continue;
    }
    add(CallMessage(value, where), IsTrained(turn, "assistant", where));
  }
  return conversation;
}

// Prompt and completion are one conversation, whose first messages are not learned.
Conversation ConversationOfCompletion(const OrderedJson& record) {
  OrderedJson messages = ListOf(record, "prompt");
  const std::size_t prompt = messages.size();
  for (const OrderedJson& message : ListOf(record, "completion")) messages.push_back(message);
  // In one list of messages, the two parts meet the same checks as the format messages.
  OrderedJson whole = {{"messages", std::move(messages)}};
  if (record.contains("tools")) whole["tools"] = record["tools"];
  Conversation conversation = ConversationOfMessages(whole);
  std::fill_n(conversation.trained.begin(), prompt, false);
  return conversation;
}

}  // namespace qlora
