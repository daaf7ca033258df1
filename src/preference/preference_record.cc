#include "preference/preference_record.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "prompt/known_fields.h"
#include "prompt/record_format.h"

namespace qlora {
namespace {

using Names = std::span<const std::string_view>;

constexpr std::string_view kChosen[] = {"chosen", "chosen_response", "preferred_output"};
constexpr std::string_view kRejected[] = {"rejected", "rejected_response", "non_preferred_output"};
constexpr std::string_view kChosenIds[] = {"chosen_ids", "chosen_input_ids"};
constexpr std::string_view kRejectedIds[] = {"rejected_ids", "rejected_input_ids"};
constexpr std::string_view kCompletionIds[] = {"completion_ids", "completion_input_ids"};
constexpr std::string_view kPromptIds[] = {"prompt_ids", "prompt_input_ids"};
constexpr std::string_view kLabel[] = {"label", "kto_tag"};
constexpr std::string_view kTurns[] = {"messages", "conversations", "conversation"};
constexpr std::string_view kQuestions[] = {"prompt", "question", "query"};

// The first of these fields that the record has; null: none.
const OrderedJson* Find(const OrderedJson& record, Names names) {
  for (const std::string_view name : names) {
    const auto field = record.find(name);
    if (field != record.end() && !field->is_null()) return &*field;
  }
  return nullptr;
}
bool Has(const OrderedJson& record, Names names) { return Find(record, names) != nullptr; }

std::string_view NameIn(const OrderedJson& record, Names names) {
  for (const std::string_view name : names) {
    if (record.contains(name) && !record.find(name)->is_null()) return name;
  }
  return names.front();
}

void Erase(OrderedJson& record, Names names) {
  for (const std::string_view name : names) record.erase(std::string(name));
}

const OrderedJson& Require(const OrderedJson& record, Names names) {
  const OrderedJson* found = Find(record, names);
  if (found != nullptr) return *found;
  for (const std::string_view name : names) {
    if (record.contains(name)) ThrowInvalidInput("field '{}' is null, expected an answer", name);
  }
  return RequiredField(record, std::string(names.front()).c_str());
}

// A list of turns, which tables hold as JSON text, else the value itself.
OrderedJson AsTurns(const OrderedJson& value) {
  if (!value.is_string() || !Trim(value.get_ref<const std::string&>()).starts_with("[")) {
    return value;
  }
  OrderedJson list;
  const bool is_json = !TryParseJson(value.get_ref<const std::string&>(), list);
  const bool is_turns = is_json && list.is_array() && !list.empty() && list.front().is_object();
  return is_turns ? list : value;
}

std::string RoleOf(const OrderedJson& message) {
  for (const char* key : {"role", "from"}) {
    if (message.is_object() && message.contains(key) && message[key].is_string()) {
      return std::string(RoleOfTemplates(message[key].get_ref<const std::string&>()));
    }
  }
  return "";
}
bool IsAnswer(const OrderedJson& message) {
  const std::string role = RoleOf(message);
  return role == "assistant" || role == kCallRole;
}

std::string_view KindOf(const OrderedJson& value) {
  if (value.is_string()) return "text";
  if (value.is_object()) return "a message";
  return value.is_array() ? "a list of messages" : std::string_view(value.type_name());
}

// Errors: InvalidInput for anything that is no answer.
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
      "answer "
      "comes next",
      name);
}

OrderedJson MessagesOf(const OrderedJson& answer) {
  if (answer.is_array()) return answer;
  if (answer.is_object()) return OrderedJson::array({answer});
  return OrderedJson::array({{{"role", "assistant"}, {"content", answer}}});
}

// Tokens as they are: those of the prompt are masked.
OrderedJson OfIds(const OrderedJson& prompt, const OrderedJson& completion, std::string_view name) {
  if (!prompt.is_array()) ThrowInvalidInput("field 'prompt_ids': expected a list of token ids");
  if (!completion.is_array() || completion.empty()) {
    ThrowInvalidInput("field '{}': expected a list of token ids that is not empty", name);
  }
  OrderedJson ids = prompt;
  OrderedJson labels(OrderedJson::array_t(prompt.size(), -100));
  for (const OrderedJson& id : completion) {
    ids.push_back(id);
    labels.push_back(id);
  }
  return {{"input_ids", std::move(ids)}, {"labels", std::move(labels)}};
}

// The record of an answer in messages. base: the other fields.
OrderedJson OfMessages(OrderedJson base, OrderedJson prompt, OrderedJson answer) {
  base["prompt"] = std::move(prompt);
  base["completion"] = std::move(answer);
  return base;
}

// The number of messages that both sides begin with, and after which the assistant answers.
std::size_t CommonMessages(const OrderedJson& chosen, const OrderedJson& rejected) {
  std::size_t common = 0;
  const std::size_t most = std::min(chosen.size(), rejected.size());
  while (common < most && chosen[common] == rejected[common]) ++common;
  if (common == chosen.size() || common == rejected.size()) {
    // Equal, or one goes on from the other: the last messages of the shorter one are its answer.
    common = most - 1;
  }
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

// Both answers are lists of messages.
PreferenceRecord OfLists(OrderedJson base, const OrderedJson& chosen, const OrderedJson& rejected) {
  OrderedJson prompt;
  if (const OrderedJson* given = Find(base, kQuestions)) prompt = AsTurns(*given);
  if (prompt.is_null()) {
    if (const OrderedJson* turns = Find(base, kTurns)) prompt = AsTurns(*turns);
  }
  Erase(base, kQuestions);
  Erase(base, kTurns);
  PreferenceRecord record;
  if (prompt.is_array()) {
    CheckPrompt(prompt, "prompt");
    for (const OrderedJson* side : {&chosen, &rejected}) {
      const bool repeats = !prompt.empty() && BeginsWith(*side, prompt);
      record.answers.push_back(
          OfMessages(base, prompt, repeats ? Slice(*side, prompt.size(), side->size()) : *side));
    }
    return record;
  }
  const std::size_t common = CommonMessages(chosen, rejected);
  if (common == 0) {
    ThrowInvalidInput(
        "chosen and rejected share no message before an answer of the assistant; expected the same "
        "first messages, or a field 'prompt'");
  }
  const OrderedJson shared = Slice(chosen, 0, common);
  if (prompt.is_string() && !HasContent(shared, prompt.get<std::string>())) {
    ThrowInvalidInput(
        "field 'prompt' is none of the messages that chosen and rejected begin with; mend it, or "
        "leave it out with ignore_fields: prompt");
  }
  record.answers.push_back(OfMessages(base, shared, Slice(chosen, common, chosen.size())));
  record.answers.push_back(OfMessages(base, shared, Slice(rejected, common, rejected.size())));
  return record;
}

// The record of an answer that is a text or one message. base: the other fields, the prompt
// included.
OrderedJson OfAnswer(OrderedJson base, const OrderedJson& answer) {
  if (const OrderedJson* turns = Find(base, kTurns)) {
    OrderedJson prompt = AsTurns(*turns);
    CheckPrompt(prompt, NameIn(base, kTurns));
    Erase(base, kTurns);
    return OfMessages(std::move(base), std::move(prompt), MessagesOf(answer));
  }
  if (HasField(base, "instruction") && answer.is_string()) {
    base["output"] = answer;
    return base;
  }
  const OrderedJson* question = Find(base, kQuestions);
  if (question == nullptr && answer.is_string()) {
    base["text"] = answer;
    return base;
  }
  OrderedJson prompt = question == nullptr ? RequiredField(base, "prompt") : AsTurns(*question);
  Erase(base, kQuestions);
  if (answer.is_string() && !prompt.is_array()) {
    base["prompt"] = std::move(prompt);
    base["completion"] = answer;
    return base;
  }
  if (prompt.is_string()) {
    prompt = OrderedJson::array({{{"role", "user"}, {"content", prompt}}});
  }
  CheckPrompt(prompt, "prompt");
  return OfMessages(std::move(base), std::move(prompt), MessagesOf(answer));
}

// The fields around the answers; OpenAI's are inside `input`.
OrderedJson Around(const OrderedJson& record) {
  OrderedJson base = record;
  Erase(base, kChosen);
  Erase(base, kRejected);
  if (base.contains("input") && base["input"].is_object()) {
    const OrderedJson input = base["input"];
    base.erase("input");
    for (const auto& [name, value] : input.items()) {
      if (name != "parallel_tool_calls") base[name] = value;
    }
  }
  return base;
}

PreferenceRecord OfPair(const OrderedJson& record) {
  // {"messages": [..., answer], "rejected_response": text}
  if (!Has(record, kChosen) && HasField(record, "rejected_response") && Has(record, kTurns)) {
    OrderedJson whole = record;
    const std::string name(NameIn(record, kTurns));
    OrderedJson turns = AsTurns(record.find(name).value());
    CheckAnswer(turns, name);
    whole["chosen"] = turns.back();
    turns.erase(turns.size() - 1);
    whole[name] = std::move(turns);
    return OfPair(whole);
  }
  const OrderedJson chosen = AsTurns(Require(record, kChosen));
  const OrderedJson rejected = AsTurns(Require(record, kRejected));
  const std::string_view first = NameIn(record, kChosen);
  const std::string_view second = NameIn(record, kRejected);
  CheckAnswer(chosen, first);
  CheckAnswer(rejected, second);
  if (chosen.is_array() != rejected.is_array() && (chosen.is_array() || rejected.is_array())) {
    ThrowInvalidInput("'{}' is {} and '{}' is {}, expected both of one kind", first, KindOf(chosen),
                      second, KindOf(rejected));
  }
  OrderedJson base = Around(record);
  if (chosen.is_array()) return OfLists(std::move(base), chosen, rejected);
  PreferenceRecord read;
  read.answers = {OfAnswer(base, chosen), OfAnswer(base, rejected)};
  read.implicit = read.answers[0].contains("text") && !base.contains("text");
  return read;
}

bool LabelOf(const OrderedJson& value, std::string_view name) {
  if (value.is_boolean()) return value.get<bool>();
  if (value == 1) return true;
  if (value == 0) return false;
  if (value.is_string()) {
    const std::string text = LowerCase(value.get<std::string>());
    if (text == "true") return true;
    if (text == "false") return false;
  }
  ThrowInvalidInput("field '{}': expected true or false, found {}", name, FormatJson(value));
}

// {"prompt", "completion"}, or a conversation whose last turns are the answer.
OrderedJson Labelled(OrderedJson record) {
  Erase(record, kLabel);
  if (!Has(record, kTurns)) {
    const OrderedJson completion = AsTurns(RequiredField(record, "completion"));
    CheckAnswer(completion, "completion");
    record.erase("completion");
    return OfAnswer(std::move(record), completion);
  }
  const std::string name(NameIn(record, kTurns));
  OrderedJson turns = AsTurns(record.find(name).value());
  CheckAnswer(turns, name);
  OrderedJson answer = OrderedJson::array({turns.back()});
  turns.erase(turns.size() - 1);
  CheckPrompt(turns, name);
  record.erase(name);
  return OfMessages(std::move(record), std::move(turns), std::move(answer));
}

bool IsPair(const OrderedJson& record) {
  return Has(record, kRejected) || Has(record, kChosen) || Has(record, kChosenIds) ||
         Has(record, kRejectedIds);
}

}  // namespace

bool LooksLikePreference(const OrderedJson& record) {
  if (Has(record, kRejected) || Has(record, kRejectedIds)) return true;
  return Has(record, kLabel) &&
         (HasField(record, "completion") || Has(record, kTurns) || Has(record, kCompletionIds));
}

PreferenceRecord ReadPreferenceRecord(const OrderedJson& record) {
  if (!record.is_object()) ThrowInvalidInput("expected an object with fields");
  PreferenceRecord read;
  if (Has(record, kChosenIds) || Has(record, kRejectedIds)) {
    const OrderedJson& prompt = Require(record, kPromptIds);
    read.answers = {OfIds(prompt, Require(record, kChosenIds), kChosenIds[0]),
                    OfIds(prompt, Require(record, kRejectedIds), kRejectedIds[0])};
    return read;
  }
  if (IsPair(record)) return OfPair(record);
  if (!Has(record, kLabel)) {
    ThrowInvalidInput(
        "no preference in the record: expected chosen and rejected, or an answer with a label "
        "(completion and label, conversations and kto_tag)");
  }
  read.label = LabelOf(*Find(record, kLabel), NameIn(record, kLabel));
  read.answers = {
      Has(record, kCompletionIds)
          ? OfIds(Require(record, kPromptIds), Require(record, kCompletionIds), kCompletionIds[0])
          : Labelled(record)};
  return read;
}

}  // namespace qlora
