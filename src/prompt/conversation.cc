#include "prompt/conversation.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "io/json.h"
#include "prompt/content_parts.h"
#include "prompt/known_fields.h"
#include "prompt/missing_values.h"
#include "prompt/record_format.h"
#include "prompt/turn_reader.h"

namespace qlora {
namespace {

using Meaning = FieldMeaning;

// The messages of a pair that some data have in place of turns; nothing for a turn. What else a
// pair says, such as thoughts and a weight, is about the answer.
std::vector<OrderedJson> TurnsOfPair(const OrderedJson& turn) {
  constexpr std::array<std::array<const char*, 2>, 2> kPairs = {
      {{"human", "assistant"}, {"input", "output"}}};
  if (turn.contains("role") || turn.contains("from")) return {};
  std::vector<OrderedJson> turns;
  for (const auto& [question, answer] : kPairs) {
    if (!HasField(turn, question) || !HasField(turn, answer)) continue;
    OrderedJson rest = turn;
    for (const char* taken : {"system", "role", "content", question, answer}) rest.erase(taken);
    if (turn.contains("system") && !SaysNothing(turn["system"])) {
      turns.push_back({{"role", "system"}, {"content", turn["system"]}});
    }
    turns.push_back({{"role", "user"}, {"content", turn[question]}});
    turns.push_back({{"role", "assistant"}, {"content", turn[answer]}});
    turns.back().update(rest);
    return turns;
  }
  return turns;
}

// Adds the turns of a value: a list of objects, one object, or the text of an answer.
void AddTurns(const OrderedJson& value, const std::string& field, Conversation& conversation,
              bool prefers_from = false) {
  if (!value.is_array() || value.empty()) {
    ThrowInvalidInput("field '{}': expected a list of messages, found {}", field,
                      value.is_array()    ? "an empty list"
                      : value.is_string() ? "a text that is no JSON list"
                                          : value.type_name());
  }
  for (std::size_t t = 0; t < value.size(); ++t) {
    const Conversation::Origin origin = {field, static_cast<std::int64_t>(t)};
    if (!value[t].is_object()) {
      ThrowInvalidInput("{}[{}]: expected an object, found {}", field, t, value[t].type_name());
    }
    const std::vector<OrderedJson> pair = TurnsOfPair(value[t]);
    for (const OrderedJson& turn : pair) TurnReader(conversation, origin, prefers_from).Add(turn);
    if (pair.empty()) TurnReader(conversation, origin, prefers_from).Add(value[t]);
  }
}

// Adds the turns of a field, which is a list of messages.
void AddField(const OrderedJson& record, const char* key, Conversation& conversation,
              bool prefers_from = false) {
  const auto list = record.find(key);
  if (list == record.end()) ThrowInvalidInput("field '{}' is missing", key);
  // The record's own system text is there, which the messages may repeat.
  const bool begins = conversation.messages.size() == 1;
  conversation.fields.emplace_back(key);
  AddTurns(*list, key, conversation, prefers_from);
  const OrderedJson& messages = conversation.messages;
  if (!begins || messages.size() < 2 || messages[1]["role"] != "system") return;
  if (messages[0]["content"] != messages[1]["content"]) {
    ThrowInvalidInput(
        "the record has a system text of its own and {}[0] is another one; keep one of them", key);
  }
  conversation.Erase(1);
}

// Adds the answer that a record has beside messages which nobody answers: logs of servers keep the
// messages of a request and the response apart.
void AddAnswer(const OrderedJson& record, Conversation& conversation) {
  if (conversation.messages.back()["role"] == "assistant") return;
  const FoundField answer = FindByMeaning(record, Meaning::kAnswer);
  if (!answer) return;
  conversation.fields.push_back(answer.name);
  OrderedJson value = *answer.value;
  if (value.is_array()) return AddTurns(value, answer.name, conversation);
  if (value.is_object()) {
    if (!value.contains("role") && !value.contains("from")) value["role"] = "assistant";
    return AddTurns(OrderedJson::array({std::move(value)}), answer.name, conversation);
  }
  const std::string text = TextOfValue(value, "record", answer.name);
  conversation.Add({{"role", "assistant"}, {"content", text}}, true, {answer.name, 0});
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
    value = ParsedText(value, where);
  } catch (const Error&) {
    if (!is_laid_out) throw;
  }
  if (SaysNothing(value)) {
    conversation.fields.push_back(field.name);
    return nullptr;
  }
  if (is_laid_out && !value.is_structured()) {
    conversation.unused_fields.push_back(field.name);
    return nullptr;
  }
  const bool is_list = meaning == Meaning::kTools;
  if (is_list ? !value.is_array() : !value.is_object()) {
    ThrowInvalidInput("{}: expected {}, found {}", where, is_list ? "a list" : "an object",
                      value.type_name());
  }
  conversation.fields.push_back(field.name);
  return value;
}

// A variable as tables write it: CSV has texts alone, and "false" is true to a template.
OrderedJson VariableOf(const OrderedJson& value) {
  if (!value.is_string()) return value;
  const std::string text = LowerCase(Trim(value.get_ref<const std::string&>()));
  if (text == "true" || text == "false") return text == "true";
  return value;
}

OrderedJson VariablesOf(const OrderedJson& record, const FieldTest& is_laid_out,
                        Conversation& conversation) {
  OrderedJson variables = StructureOf(record, Meaning::kVariables, is_laid_out, conversation);
  for (const auto& [name, written] : record.items()) {
    if (!IsKnownAs(name, Meaning::kVariable) || SaysNothing(written)) continue;
    if (is_laid_out && is_laid_out(name)) continue;
    const OrderedJson value = VariableOf(written);
    const auto known = variables.is_null() ? variables.end() : variables.find(name);
    if (known != variables.end() && *known != value) {
      ThrowInvalidInput("field '{}' and chat_template_kwargs differ; keep one of them", name);
    }
    variables[name] = value;
    conversation.fields.push_back(name);
  }
  // Texts to answer from, which transformers gives to templates under this name.
  if (const auto texts = record.find("documents");
      texts != record.end() && !(is_laid_out && is_laid_out("documents"))) {
    OrderedJson list = *texts;
    const bool is_json = !list.is_string() || !TryParseJson(list.get<std::string>(), list);
    if (is_json && list.is_array()) {
      variables["documents"] = std::move(list);
      conversation.fields.emplace_back("documents");
    }
  }
  DropNulls(variables);
  return variables;
}

}  // namespace

void Conversation::Add(OrderedJson message, bool is_trained, Origin origin,
                       std::vector<std::string> arguments, std::vector<std::string> parts) {
  messages.push_back(std::move(message));
  trained.push_back(is_trained);
  argument_texts.push_back(std::move(arguments));
  text_parts.push_back(std::move(parts));
  origins.push_back(std::move(origin));
}

void Conversation::Erase(std::size_t m) {
  const auto at = static_cast<std::ptrdiff_t>(m);
  messages.erase(m);
  trained.erase(trained.begin() + at);
  argument_texts.erase(argument_texts.begin() + at);
  text_parts.erase(text_parts.begin() + at);
  origins.erase(origins.begin() + at);
}

void Conversation::Shorten(std::size_t count) {
  messages.get_ref<OrderedJson::array_t&>().resize(count);
  trained.resize(count);
  argument_texts.resize(std::min(argument_texts.size(), count));
  text_parts.resize(std::min(text_parts.size(), count));
  origins.resize(std::min(origins.size(), count));
}

Conversation BeginConversation(const OrderedJson& record, const FieldTest& is_laid_out) {
  Conversation conversation{.messages = OrderedJson::array(), .tools = {}, .trained = {}};
  const OrderedJson tools = StructureOf(record, Meaning::kTools, is_laid_out, conversation);
  if (!tools.empty()) {
    const FoundField field = FindByMeaning(record, Meaning::kTools);
    conversation.tools = CompleteTools(tools, field.name);
  }
  conversation.variables = VariablesOf(record, is_laid_out, conversation);
  const FoundField system = FindByMeaning(record, Meaning::kSystem);
  if (!system) return conversation;
  conversation.fields.push_back(system.name);
  // A layout may show the field `system` and a message of it, other names only once.
  if (system.name != "system" && is_laid_out && is_laid_out(system.name)) return conversation;
  conversation.Add(
      {{"role", "system"},
       {"content", ReadContent(*system.value, "record", system.name).text.value_or("")}},
      false, {system.name, 0});
  return conversation;
}

Conversation ConversationOfMessages(const OrderedJson& record) {
  Conversation conversation = BeginConversation(record);
  AddField(record, "messages", conversation);
  AddAnswer(record, conversation);
  return conversation;
}

Conversation ConversationOfShareGpt(const OrderedJson& record) {
  Conversation conversation = BeginConversation(record);
  AddField(record, "conversations", conversation, /*prefers_from=*/true);
  AddAnswer(record, conversation);
  return conversation;
}

Conversation ConversationOfPrompt(const OrderedJson& record) {
  Conversation conversation = BeginConversation(record);
  AddField(record, "prompt", conversation);
  return conversation;
}

// Prompt and completion are one conversation, whose first messages are not learned.
Conversation ConversationOfCompletion(const OrderedJson& record) {
  Conversation conversation = ConversationOfPrompt(record);
  const std::size_t prompt = conversation.messages.size();
  AddField(record, "completion", conversation);
  std::fill_n(conversation.trained.begin(), prompt, false);
  return conversation;
}

}  // namespace qlora
