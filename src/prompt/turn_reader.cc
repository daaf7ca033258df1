#include "prompt/turn_reader.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "io/json.h"
#include "prompt/content_parts.h"
#include "prompt/known_fields.h"
#include "prompt/missing_values.h"

namespace qlora {
namespace {

using Meaning = FieldMeaning;

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

OrderedJson ListOfCalls(const OrderedJson& value) {
  const OrderedJson functions = value.is_array() ? value : OrderedJson::array({value});
  OrderedJson calls = OrderedJson::array();
  for (const OrderedJson& function : functions) {
    calls.push_back({{"type", "function"}, {"function", function}});
  }
  return calls;
}

}  // namespace

WrittenCalls SplitWrittenCalls(std::string_view text) {
  constexpr std::string_view kOpen = "<think>";
  constexpr std::string_view kClose = "</think>";
  text = Trim(text);
  const std::size_t close = text.find(kClose);
  if (!text.starts_with(kOpen) || close == text.npos) return {.thoughts = {}, .calls = text};
  return {.thoughts = Trim(text.substr(kOpen.size(), close - kOpen.size())),
          .calls = Trim(text.substr(close + kClose.size()))};
}

TurnReader::TurnReader(Conversation& conversation, Conversation::Origin origin, bool prefers_from)
    : conversation_(conversation),
      origin_(std::move(origin)),
      where_(fmt::format("{}[{}]", origin_.field, origin_.turn)),
      prefers_from_(prefers_from),
      results_(OrderedJson::array()) {}

void TurnReader::Add(const OrderedJson& turn) {
  Rename(turn);
  DropMissingFields(message_);
  TakeRole();
  const std::optional<bool> flag = TakeFlags();
  if (role_ == kCallRole) return AddCalls(message_["content"], flag);
  TakeContent();
  TakeCalls();
  for (OrderedJson& result : results_) Push(std::move(result), {});
  CheckContent(turn);
  // A turn of results alone has no words of its own.
  if (!results_.empty() && SaysNothing(message_["content"])) return;
  if (CallsInSilence(message_)) message_["content"] = nullptr;
  Push(std::move(message_), flag, std::move(text_parts_));
}

// {from, value} become {role, content}, first of all fields, as templates may print them.
void TurnReader::Rename(const OrderedJson& turn) {
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
  key_ = by_value ? "value" : "content";
  role_key_ = role;
  by_from_ = by_from;
}

// Roles in capitals, and with blanks around them, are those in lower case where one is known.
void TurnReader::TakeRole() {
  const OrderedJson& role = message_["role"];
  if (SaysNothing(role)) ThrowInvalidInput("{}: '{}' is missing", where_, role_key_);
  role_ = TextOfValue(role, where_, role_key_);
  const std::string lower = LowerCase(Trim(role_));
  const std::string_view known = RoleOfTemplates(lower);
  const bool is_known = known != lower || known == "user" || known == "assistant" ||
                        known == "system" || known == "tool" || known == kCallRole;
  if (by_from_ && !is_known) {
    ThrowInvalidInput("{}: 'from': expected human, gpt, system, tool or function_call, found '{}'",
                      where_, role_);
  }
  if (is_known) role_ = lower;
  // A name that some templates know is kept: the template that is used decides
  // (fit/template_fit.h). ShareGPT's names are of its own.
  const bool is_kept = IsRoleOfSomeTemplates(role_) && (!by_from_ || role_ == "developer");
  if (is_known && !is_kept) role_ = known;
  message_["role"] = role_;
}

// Removes the flags, which no template shows. Nothing when there is none.
std::optional<bool> TurnReader::TakeFlags() {
  if (const FoundField parts = FindByMeaning(message_, Meaning::kPartMask)) {
    ThrowInvalidInput("{}: '{}' marks parts of an answer, which is not supported; {}", where_,
                      parts.name,
                      "write {% generation %} in the chat template, or leave the field out");
  }
  if (const FoundField mask = FindByMeaning(message_, Meaning::kUnclearMask)) {
    ThrowInvalidInput(
        "{}: '{}' reads like a mask, by which programs mean what is trained or what is not; write "
        "'weight': 0 where an answer is not to be trained on, or leave the field out",
        where_, mask.name);
  }
  std::optional<bool> flag;
  std::vector<std::string> names;
  for (const auto& [name, value] : message_.items()) {
    if (!IsKnownAs(name, Meaning::kFlag)) continue;
    names.push_back(name);
    if (SaysNothing(value)) continue;
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

void TurnReader::TakeContent() {
  // A result that is data, which some templates write as JSON themselves.
  if (RoleOfTemplates(role_) == "tool" && IsData(message_["content"])) return;
  ContentParts parts = ReadContent(message_["content"], where_, key_);
  message_["content"] = parts.text ? OrderedJson(std::move(*parts.text)) : OrderedJson();
  if (parts.texts.size() > 1) text_parts_ = std::move(parts.texts);
  results_ = std::move(parts.results);
  if (parts.has_hidden_thoughts) Warn("encrypted thoughts (redacted_thinking), which say nothing");
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
void TurnReader::TakeCalls() {
  if (const auto old = message_.find("function_call"); old != message_.end()) {
    const OrderedJson call = ParsedText(*old, where_ + ": 'function_call'");
    message_.erase("function_call");
    if (!SaysNothing(call)) {
      if (message_.contains("tool_calls") && !SaysNothing(message_["tool_calls"])) {
        ThrowInvalidInput("{}: both 'function_call' and 'tool_calls'", where_);
      }
      message_["tool_calls"] = ListOfCalls(call);
    }
  }
  const auto calls = message_.find("tool_calls");
  if (calls == message_.end()) return;
  *calls = ParsedText(*calls, where_ + ": 'tool_calls'");
  if (SaysNothing(*calls)) {
    message_.erase("tool_calls");
  } else {
    ReadCalls(*calls);
  }
}

// The calls that a function_call holds: one, or a list, as objects or as JSON, perhaps behind a
// thought in tags.
void TurnReader::AddCalls(const OrderedJson& value, std::optional<bool> flag) {
  OrderedJson calls = value;
  if (value.is_string()) {
    // A copy: `value` may be a field of message_, which moves when another field is added.
    const std::string text = value.get<std::string>();
    const WrittenCalls written = SplitWrittenCalls(text);
    if (!written.thoughts.empty()) message_["reasoning_content"] = written.thoughts;
    calls = ParseOrderedJson(written.calls, where_);
  }
  if (SaysNothing(calls)) ThrowInvalidInput("{}: the call is empty", where_);
  message_["role"] = role_ = "assistant";
  message_["content"] = nullptr;
  message_["tool_calls"] = ListOfCalls(calls);
  ReadCalls(message_["tool_calls"]);
  Push(std::move(message_), flag);
}

// Arguments as objects. OpenAI's API gives them as a text that holds JSON, empty without arguments;
// most templates print them with tojson and would print the text in quotes.
void TurnReader::ReadCalls(OrderedJson& calls) {
  if (!calls.is_array()) {
    ThrowInvalidInput("{}: 'tool_calls': expected a list, found {}", where_, calls.type_name());
  }
  for (OrderedJson& call : calls) {
    if (!call.is_object()) ThrowInvalidInput("{}: 'tool_calls' holds no objects", where_);
    CompleteCall(call, where_);
    // OpenAI's form is {"type": "function", "function": {"name", "arguments"}}; others have the
    // inner object alone.
    OrderedJson& function = call.contains("function") ? call["function"] : call;
    if (!function.is_object()) {
      ThrowInvalidInput("{}: 'function' of a tool call: expected an object, found {}", where_,
                        function.type_name());
    }
    std::string& text = arguments_.emplace_back();
    OrderedJson& arguments = function["arguments"];
    if (arguments.is_string()) {
      text = arguments.get<std::string>();
      arguments = ParsedText(text, where_ + ": tool-call arguments");
    }
    if (SaysNothing(arguments)) arguments = OrderedJson::object();
    if (text.empty() && DropForeignArguments(function, conversation_.tools)) {
      Warn(
          "null as an argument of a call, which is trained as it stands (tables write it for what "
          "nobody wrote)");
    }
    if (!function.contains("name")) ThrowInvalidInput("{}: a tool call has no name", where_);
  }
}

// An assistant may call a tool or think, and say nothing; any other message without text is a
// mistake, and templates would print "None".
void TurnReader::CheckContent(const OrderedJson& turn) {
  if (!message_["content"].is_null() || !results_.empty()) return;
  if (message_.contains("tool_calls")) return;
  if (RoleOfTemplates(role_) == "tool") {  // a function that returns nothing
    message_["content"] = "";
    return;
  }
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

void TurnReader::Push(OrderedJson message, std::optional<bool> flag,
                      std::vector<std::string> parts) {
  const bool is_answer = message["role"] == "assistant";
  conversation_.Add(std::move(message), is_answer && flag.value_or(true), origin_,
                    is_answer ? std::move(arguments_) : std::vector<std::string>(),
                    std::move(parts));
}

}  // namespace qlora
