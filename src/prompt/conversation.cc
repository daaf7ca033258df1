#include "prompt/conversation.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "io/json.h"
#include "prompt/content_parts.h"
#include "prompt/known_fields.h"

namespace qlora {
namespace {

using Meaning = FieldMeaning;

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

// Returns a value that tables must write as a text that holds JSON. An empty text is null.
OrderedJson Parsed(const OrderedJson& value, const std::string& where) {
  if (!value.is_string()) return value;
  const auto& text = value.get_ref<const std::string&>();
  return Trim(text).empty() ? OrderedJson() : ParseOrderedJson(text, where);
}

// Returns the list or object of a field that means `meaning`, which may be written as a text that
// holds JSON. Null: there is none, or the layout reads the field itself. A table may have a column
// of the name that means something else ("hammer, saw"), which is not used.
OrderedJson StructureOf(const OrderedJson& record, Meaning meaning, const FieldTest& is_laid_out,
                        Conversation& conversation) {
  const FoundField field = FindByMeaning(record, meaning);
  if (!field || (is_laid_out && is_laid_out(field.name))) return nullptr;
  const std::string where = fmt::format("field '{}'", field.name);
  OrderedJson value = *field.value;
  try {
    value = Parsed(value, where);
  } catch (const Error&) {
    if (!is_laid_out) throw;
  }
  if (value.is_null()) return nullptr;
  if (is_laid_out && !value.is_structured()) {
    conversation.unused_fields.push_back(field.name);
    return nullptr;
  }
  const bool is_list = meaning == Meaning::kTools;
  if (is_list ? !value.is_array() : !value.is_object()) {
    ThrowInvalidInput("{}: expected {}, found {}", where, is_list ? "a list" : "an object",
                      value.type_name());
  }
  return value;
}

OrderedJson VariablesOf(const OrderedJson& record, const FieldTest& is_laid_out,
                        Conversation& conversation) {
  OrderedJson variables = StructureOf(record, Meaning::kVariables, is_laid_out, conversation);
  for (const auto& [name, value] : record.items()) {
    if (!IsKnownAs(name, Meaning::kVariable) || value.is_null()) continue;
    if (is_laid_out && is_laid_out(name)) continue;
    const auto known = variables.is_null() ? variables.end() : variables.find(name);
    if (known != variables.end() && *known != value) {
      ThrowInvalidInput("field '{}' and chat_template_kwargs differ; keep one of them", name);
    }
    variables[name] = value;
  }
  return variables;
}

// True or false, as true, false, 1 or 0.
bool FlagOf(const FoundField& flag, const std::string& where) {
  const OrderedJson& value = *flag.value;
  if (value.is_boolean()) return value.get<bool>();
  if (!value.is_number() || (value != 0 && value != 1)) {
    ThrowInvalidInput("{}: '{}' says whether to train, and must be true, false, 0 or 1, found {}",
                      where, flag.name, FormatJson(value));
  }
  return value == 1;
}

// A message that is made of a turn, and the words of its fields.
class TurnReader {
 public:
  TurnReader(Conversation& conversation, std::string where, bool prefers_from)
      : conversation_(conversation), where_(std::move(where)), prefers_from_(prefers_from) {}

  void Add(const OrderedJson& turn) {
    Rename(turn);
    TakeRole();
    const std::optional<bool> flag = TakeFlags();
    if (role_ == kCallRole) return AddCalls(message_["content"], flag);
    TakeContent();
    TakeCalls();
    for (OrderedJson& result : results_) Push(std::move(result), {});
    CheckContent(turn);
    // A turn of results alone has no words of its own.
    if (!results_.empty() && SaysNothing(message_["content"])) return;
    Push(std::move(message_), flag);
  }

 private:
  // {from, value} become {role, content}, first of all fields, as templates may print them.
  void Rename(const OrderedJson& turn) {
    const bool by_from = turn.contains("from") && (prefers_from_ || !turn.contains("role"));
    const bool by_value = turn.contains("value") && (by_from || !turn.contains("content"));
    if (!by_from && !by_value) {
      message_ = turn;
      return;
    }
    const char* role = by_from ? "from" : "role";
    const char* content = by_value ? "value" : "content";
    message_ = {{"role", nullptr}, {"content", nullptr}};
    if (turn.contains(role)) message_["role"] = turn[role];
    if (turn.contains(content)) message_["content"] = turn[content];
    for (const auto& [name, value] : turn.items()) {
      if (name != "role" && name != "content" && name != role && name != content) {
        message_[name] = value;
      }
    }
    key_ = by_from ? "value" : "content";
    role_key_ = role;
    by_from_ = by_from;
  }

  void TakeRole() {
    const OrderedJson& role = message_["role"];
    if (role.is_null()) ThrowInvalidInput("{}: '{}' is missing", where_, role_key_);
    role_ = TextOfValue(role, where_, role_key_);
    const std::string_view known = RoleOfTemplates(role_);
    const bool is_known = known != role_ || known == "user" || known == "assistant" ||
                          known == "system" || known == "tool" || known == kCallRole;
    if (by_from_ && !is_known) {
      ThrowInvalidInput(
          "{}: 'from': expected human, gpt, system, tool or function_call, found '{}'", where_,
          role_);
    }
    // A name that some templates know is kept: the template that is used decides (template_fit.h).
    // ShareGPT's names are of its own.
    const bool is_kept = IsRoleOfSomeTemplates(role_) && (!by_from_ || role_ == "developer");
    if (!is_kept) role_ = known;
    message_["role"] = role_;
  }

  // Removes the flags, which no template shows. Nothing when there is none.
  std::optional<bool> TakeFlags() {
    if (const FoundField parts = FindByMeaning(message_, Meaning::kPartMask)) {
      ThrowInvalidInput("{}: '{}' marks parts of an answer, which is not supported; {}", where_,
                        parts.name,
                        "write {% generation %} in the chat template, or leave the field out");
    }
    std::optional<bool> flag;
    std::vector<std::string> names;
    for (const auto& [name, value] : message_.items()) {
      if (!IsKnownAs(name, Meaning::kFlag)) continue;
      names.push_back(name);
      if (value.is_null()) continue;
      const bool trains = FlagOf({name, &value}, where_);
      if (flag && *flag != trains) {
        ThrowInvalidInput("{}: '{}' and another field differ about whether to train", where_, name);
      }
      flag = trains;
      if (trains && role_ != "assistant" && role_ != kCallRole) {
        Warn(
            fmt::format("'{}' on messages that are not the assistant's, which are not trained on "
                        "(train_on_inputs trains on everything)",
                        name));
      }
    }
    for (const std::string& name : names) message_.erase(name);
    return flag;
  }

  void TakeContent() {
    ContentParts parts = ReadContent(message_["content"], where_, key_);
    message_["content"] = parts.text ? OrderedJson(std::move(*parts.text)) : OrderedJson();
    results_ = std::move(parts.results);
    if (parts.has_hidden_thoughts)
      Warn("encrypted thoughts (redacted_thinking), which say nothing");
    if (!parts.thoughts.empty()) {
      if (FindByMeaning(message_, Meaning::kThoughts)) {
        ThrowInvalidInput("{}: thoughts are in the content and in another field", where_);
      }
      message_["reasoning_content"] = std::move(parts.thoughts);
    }
    if (parts.calls.empty()) return;
    OrderedJson& calls = message_["tool_calls"];
    if (!SaysNothing(calls)) {
      ThrowInvalidInput("{}: calls of tools are in the content and in 'tool_calls'", where_);
    }
    calls = std::move(parts.calls);
  }

  // tool_calls as a list, which a text may hold; function_call of old records becomes such a list.
  void TakeCalls() {
    if (const auto old = message_.find("function_call"); old != message_.end()) {
      const OrderedJson call = Parsed(*old, where_ + ": 'function_call'");
      message_.erase("function_call");
      if (!SaysNothing(call)) {
        if (message_.contains("tool_calls") && !SaysNothing(message_["tool_calls"])) {
          ThrowInvalidInput("{}: both 'function_call' and 'tool_calls'", where_);
        }
        message_["tool_calls"] = ListOfCalls(call);
      }
    }
    const auto calls = message_.find("tool_calls");
    if (calls == message_.end() || calls->is_null()) return;
    *calls = Parsed(*calls, where_ + ": 'tool_calls'");
    if (!calls->is_null()) ParseArguments(*calls);
  }

  // The calls that a function_call holds: one, or a list, as objects or as JSON.
  void AddCalls(const OrderedJson& value, std::optional<bool> flag) {
    const OrderedJson calls =
        value.is_string() ? ParseOrderedJson(value.get_ref<const std::string&>(), where_) : value;
    if (SaysNothing(calls)) ThrowInvalidInput("{}: the call is empty", where_);
    message_["role"] = role_ = "assistant";
    message_["content"] = "";
    message_["tool_calls"] = ListOfCalls(calls);
    ParseArguments(message_["tool_calls"]);
    Push(std::move(message_), flag);
  }

  static OrderedJson ListOfCalls(const OrderedJson& value) {
    const OrderedJson functions = value.is_array() ? value : OrderedJson::array({value});
    OrderedJson calls = OrderedJson::array();
    for (const OrderedJson& function : functions) {
      calls.push_back({{"type", "function"}, {"function", function}});
    }
    return calls;
  }

  // Arguments as objects. OpenAI's API gives them as a text that holds JSON, empty without
  // arguments; most templates print them with tojson and would print the text in quotes.
  void ParseArguments(OrderedJson& calls) {
    if (!calls.is_array()) {
      ThrowInvalidInput("{}: 'tool_calls': expected a list, found {}", where_, calls.type_name());
    }
    for (OrderedJson& call : calls) {
      if (!call.is_object()) ThrowInvalidInput("{}: 'tool_calls' holds no objects", where_);
      // OpenAI's form is {"type": "function", "function": {"name", "arguments"}}; others have the
      // inner object alone.
      OrderedJson* function = &call;
      if (call.contains("function")) function = &call["function"];
      if (!function->is_object()) ThrowInvalidInput("{}: a tool call is not an object", where_);
      std::string& text = arguments_.emplace_back();
      const auto arguments = function->find("arguments");
      if (arguments == function->end() || !arguments->is_string()) continue;
      text = arguments->get<std::string>();
      *arguments = Parsed(text, where_ + ": tool-call arguments");
      if (arguments->is_null()) *arguments = OrderedJson::object();
    }
  }

  // An assistant may call a tool or think, and say nothing; any other message without text is a
  // mistake, and templates would print "None".
  void CheckContent(const OrderedJson& turn) {
    if (!message_["content"].is_null() || !results_.empty()) return;
    if (message_.contains("tool_calls") && !SaysNothing(message_["tool_calls"])) return;
    if (role_ == "assistant" && FindByMeaning(message_, Meaning::kThoughts)) {
      message_["content"] = "";
      return;
    }
    if (turn.contains(key_)) {
      ThrowInvalidInput("{}: '{}' is null, and there are no 'tool_calls'", where_, key_);
    }
    if (by_from_) ThrowInvalidInput("{}: 'value' is missing", where_);
    ThrowInvalidInput("{}: neither 'content' nor 'tool_calls'", where_);
  }

  void Push(OrderedJson message, std::optional<bool> flag) {
    const bool is_answer = message["role"] == "assistant";
    conversation_.messages.push_back(std::move(message));
    conversation_.trained.push_back(is_answer && flag.value_or(true));
    conversation_.argument_texts.push_back(is_answer ? std::move(arguments_)
                                                     : std::vector<std::string>());
  }

  void Warn(std::string text) { conversation_.warnings.push_back(std::move(text)); }

  Conversation& conversation_;
  const std::string where_;
  const bool prefers_from_;
  OrderedJson message_;
  OrderedJson results_ = OrderedJson::array();
  std::vector<std::string> arguments_;
  std::string role_;
  const char* role_key_ = "role";
  const char* key_ = "content";
  bool by_from_ = false;
};

void AddTurns(const OrderedJson& record, const char* key, Conversation& conversation,
              bool prefers_from = false) {
  const bool begins = conversation.messages.size() == 1;  // the record's own system text
  const OrderedJson& turns = ListOf(record, key);
  for (std::size_t t = 0; t < turns.size(); ++t) {
    TurnReader(conversation, fmt::format("{}[{}]", key, t), prefers_from).Add(turns[t]);
  }
  const OrderedJson& messages = conversation.messages;
  if (!begins || messages.size() < 2 || messages[1]["role"] != "system") return;
  if (messages[0]["content"] != messages[1]["content"]) {
    ThrowInvalidInput(
        "the record has a system text of its own and {}[0] is another one; keep one of them", key);
  }
  conversation.messages.erase(1);
  conversation.trained.erase(conversation.trained.begin() + 1);
  conversation.argument_texts.erase(conversation.argument_texts.begin() + 1);
}

}  // namespace

void Conversation::Shorten(std::size_t count) {
  messages.get_ref<OrderedJson::array_t&>().resize(count);
  trained.resize(count);
  argument_texts.resize(std::min(argument_texts.size(), count));
}

Conversation BeginConversation(const OrderedJson& record, const FieldTest& is_laid_out) {
  Conversation conversation{.messages = OrderedJson::array(), .tools = {}, .trained = {}};
  OrderedJson tools = StructureOf(record, Meaning::kTools, is_laid_out, conversation);
  if (!tools.empty()) conversation.tools = std::move(tools);
  conversation.variables = VariablesOf(record, is_laid_out, conversation);
  const FoundField system = FindByMeaning(record, Meaning::kSystem);
  // A layout may show the field `system` and a message of it, other names only once.
  const bool is_shown =
      system && system.name != "system" && is_laid_out && is_laid_out(system.name);
  if (!system || is_shown) return conversation;
  conversation.messages.push_back(
      {{"role", "system"},
       {"content", ReadContent(*system.value, "record", system.name).text.value_or("")}});
  conversation.trained.push_back(false);
  conversation.argument_texts.emplace_back();
  return conversation;
}

Conversation ConversationOfMessages(const OrderedJson& record) {
  Conversation conversation = BeginConversation(record);
  AddTurns(record, "messages", conversation);
  return conversation;
}

Conversation ConversationOfShareGpt(const OrderedJson& record) {
  Conversation conversation = BeginConversation(record);
  AddTurns(record, "conversations", conversation, /*prefers_from=*/true);
  return conversation;
}

Conversation ConversationOfPrompt(const OrderedJson& record) {
  Conversation conversation = BeginConversation(record);
  AddTurns(record, "prompt", conversation);
  return conversation;
}

// Prompt and completion are one conversation, whose first messages are not learned.
Conversation ConversationOfCompletion(const OrderedJson& record) {
  Conversation conversation = ConversationOfPrompt(record);
  const std::size_t prompt = conversation.messages.size();
  AddTurns(record, "completion", conversation);
  std::fill_n(conversation.trained.begin(), prompt, false);
  return conversation;
}

}  // namespace qlora
