#include "prompt/record_format.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "io/json.h"
#include "prompt/known_fields.h"

namespace qlora {
namespace {

struct FormatName {
  RecordFormat format;
  std::string_view name;
  std::string_view aliases = {};  // separated by spaces
};
constexpr FormatName kFormatNames[] = {
    {RecordFormat::kAuto, "auto"},
    {RecordFormat::kRaw, "raw", "txt"},
    {RecordFormat::kText, "text"},
    {RecordFormat::kPromptCompletion, "prompt_completion", "prompt-completion completion"},
    {RecordFormat::kInstruction, "alpaca", "instruction"},
    {RecordFormat::kTemplate, "template"},
    {RecordFormat::kShareGpt, "sharegpt"},
    {RecordFormat::kMessages, "messages", "chat openai"},
    {RecordFormat::kInputIds, "input_ids", "tokenized"},
    {RecordFormat::kDecision, "decision"}};

// The names that public data sets give to one field, that of the format first.
using Names = std::span<const std::string_view>;
constexpr std::string_view kPromptNames[] = {"prompt", "question", "query", "input"};
constexpr std::string_view kCompletionNames[] = {"completion", "response", "answer", "output"};
constexpr std::string_view kInstructionNames[] = {"instruction"};
constexpr std::string_view kInputNames[] = {"input", "context"};
constexpr std::string_view kOutputNames[] = {"output", "response", "answer", "completion"};
constexpr std::string_view kConversationNames[] = {"conversations", "conversation"};

bool Has(const OrderedJson& record, std::string_view key) {
  return HasField(record, std::string(key).c_str());
}

bool Says(const OrderedJson& record, std::string_view key) {
  return Has(record, key) && !SaysNothing(record[std::string(key)]);
}

// Returns the one of these names that says something in the record, or the only one that it has;
// nothing when there is none, or several: a guess would train on the wrong text without a word.
std::optional<FieldName> OnlyName(const OrderedJson& record, Names names) {
  for (const auto& test : {Says, Has}) {
    std::optional<FieldName> found;
    for (const std::string_view name : names) {
      if (!test(record, name)) continue;
      if (found) return std::nullopt;
      found = {names.front(), name};
    }
    if (found) return found;
  }
  return std::nullopt;
}

// The names of each field of a format that has several.
std::span<const Names> NamesOfFields(RecordFormat format) {
  static constexpr Names kOfCompletion[] = {kPromptNames, kCompletionNames};
  static constexpr Names kOfInstruction[] = {kInstructionNames, kInputNames, kOutputNames};
  static constexpr Names kOfShareGpt[] = {kConversationNames};
  if (format == RecordFormat::kPromptCompletion) return kOfCompletion;
  if (format == RecordFormat::kInstruction) return kOfInstruction;
  if (format == RecordFormat::kShareGpt) return kOfShareGpt;
  return {};
}

// Returns the format of a record that has its fields, though perhaps others say what those do not.
DetectedFormat FormatOfOwnNames(const OrderedJson& record, RecordFormat format) {
  DetectedFormat detected{format, {}};
  bool has_others = false;
  for (const Names names : NamesOfFields(format)) {
    const FieldName own = {names.front(), names.front()};
    detected.names.push_back(OnlyName(record, names).value_or(own));
    has_others = has_others || detected.names.back().theirs != own.theirs;
  }
  if (!has_others) detected.names.clear();
  return detected;
}

// Returns how the fields of this record are read, in a file of the format.
std::vector<FieldName> NamesInRecord(const OrderedJson& record, const DetectedFormat& detected) {
  std::vector<FieldName> names = detected.names;
  for (const Names known : NamesOfFields(detected.format)) {
    auto name = std::ranges::find(names, known.front(), &FieldName::ours);
    if (name == names.end()) name = names.insert(name, {known.front(), known.front()});
    if (Says(record, name->ours) || Says(record, name->theirs)) continue;
    const auto other = OnlyName(record, known);
    // An object is no text: the `input` of OpenAI's pairs holds the messages.
    if (other && Says(record, other->theirs) && !record[other->theirs].is_object()) *name = *other;
  }
  return names;
}

// Returns the names that fit the record, of one format or of any (kAuto).
std::optional<DetectedFormat> FindOtherNames(const OrderedJson& record, RecordFormat format) {
  const bool has_instruction = Has(record, "instruction");
  const auto is_asked = [format](RecordFormat one) {
    return format == RecordFormat::kAuto || format == one;
  };
  const auto fit = [&](RecordFormat found, Names prompts, Names answers) {
    const auto prompt = OnlyName(record, prompts);
    const auto answer = OnlyName(record, answers);
    return prompt && answer ? std::optional(DetectedFormat{found, {*prompt, *answer}})
                            : std::nullopt;
  };
  if (is_asked(RecordFormat::kInstruction) && has_instruction) {
    auto found = fit(RecordFormat::kInstruction, kInstructionNames, kOutputNames);
    // A question beside the instruction: the record does not tell which of them is meant.
    const bool asks = Says(record, "prompt") || Says(record, "question") || Says(record, "query");
    if (!found || (asks && format == RecordFormat::kAuto)) return std::nullopt;
    // Both names: that of the format is read.
    const FieldName input = OnlyName(record, kInputNames).value_or(FieldName{"input", "input"});
    found->names.insert(found->names.begin() + 1, input);
    return found;
  }
  if (!is_asked(RecordFormat::kPromptCompletion)) return std::nullopt;
  return fit(RecordFormat::kPromptCompletion, kPromptNames, kCompletionNames);
}

// Returns "question, answer": the keys that a message shows of a record that lacks a field.
std::string KeysOf(const OrderedJson& record) {
  std::string keys;
  for (const auto& item : record.items()) {
    keys += (keys.empty() ? "" : ", ") + item.key() + (item.value().is_null() ? " (null)" : "");
  }
  return keys.empty() ? "none" : keys;
}

// By the names that training on preferences reads (preference/preference_record.h).
bool IsPreferencePair(const OrderedJson& record) {
  const auto has = [&record](std::initializer_list<const char*> names) {
    return std::ranges::any_of(names, [&](const char* name) { return HasField(record, name); });
  };
  return has({"chosen", "chosen_response", "preferred_output", "chosen_ids", "chosen_input_ids"}) &&
         has({"rejected", "rejected_response", "non_preferred_output", "rejected_ids",
              "rejected_input_ids"});
}

// Returns "question in place of Question, ...": the names to use in a record whose fields tell a
// format except for the case of their names; "" for other records.
std::string NamesInLowerCase(const OrderedJson& record) {
  OrderedJson lower = OrderedJson::object();
  std::string names;
  for (const auto& item : record.items()) {
    const std::string name = LowerCase(item.key());
    lower[name] = item.value();
    if (name != item.key())
      names += (names.empty() ? "" : ", ") + name + " in place of " + item.key();
  }
  return DetectRecordFormat(lower, false) ? names : "";
}

// Returns the field whose list of records is the data, in a file that is one object around its
// records; "" for other records.
std::string ListOfRecords(const OrderedJson& record) {
  for (const auto& item : record.items()) {
    const OrderedJson& value = item.value();
    const bool is_list = value.is_array() && !value.empty() && value.front().is_object() &&
                         !IsPartOfConversation(item.key());
    if (is_list && DetectRecordFormat(value.front(), false)) return item.key();
  }
  return "";
}

}  // namespace

bool IsConversationFormat(RecordFormat format) {
  return format == RecordFormat::kMessages || format == RecordFormat::kShareGpt;
}

std::string_view RecordFormatName(RecordFormat format) {
  for (const FormatName& known : kFormatNames) {
    if (known.format == format) return known.name;
  }
  return "";
}

RecordFormat ParseRecordFormat(std::string_view name) {
  for (const FormatName& known : kFormatNames) {
    if (known.name == name || HasWord(known.aliases, name)) return known.format;
  }
  ThrowInvalidInput(
      "dataset_format: expected auto, raw, text, prompt_completion, alpaca, template, sharegpt, "
      "messages, input_ids or decision, found '{}'",
      name);
}

// Tests the most specific first: tokens that someone has prepared win over the text that is often
// kept with them, a template that the user wrote wins over the names that fields happen to have,
// and the names of a format win over other names.
std::optional<DetectedFormat> DetectRecordFormat(const OrderedJson& record, bool has_template) {
  const auto has = [&record](const char* key) { return HasField(record, key); };
  const auto found = [](RecordFormat format) { return DetectedFormat{format, {}}; };
  if (has("input_ids")) return found(RecordFormat::kInputIds);
  if (has_template) return found(RecordFormat::kTemplate);
  if (Says(record, "messages")) return found(RecordFormat::kMessages);
  if (Says(record, "conversations")) return found(RecordFormat::kShareGpt);
  // A text of this name is none, unless it holds turns.
  if (Says(record, "conversation") && AsTurns(record["conversation"]).is_array()) {
    return DetectedFormat{RecordFormat::kShareGpt, {{"conversations", "conversation"}}};
  }
  if (has("prompt") && has("completion")) {
    return FormatOfOwnNames(record, RecordFormat::kPromptCompletion);
  }
  if (has("instruction") && has("output")) {
    return FormatOfOwnNames(record, RecordFormat::kInstruction);
  }
  if (has("text")) return found(RecordFormat::kText);
  // Such records often have "prompt" next to chosen and rejected. Other names would find a pair
  // among them that no one meant.
  if (IsPreferencePair(record)) return std::nullopt;
  if (auto other = FindOtherNames(record, RecordFormat::kAuto)) return other;
  // A list of no messages, which is refused as such.
  if (has("messages")) return found(RecordFormat::kMessages);
  if (has("conversations")) return found(RecordFormat::kShareGpt);
  return std::nullopt;
}

std::optional<DetectedFormat> DetectFieldNames(const OrderedJson& record, RecordFormat format) {
  const std::optional<DetectedFormat> detected = DetectRecordFormat(record, false);
  // The names of the format itself come before other names, as in detection.
  if (detected && detected->format == format) return detected;
  return FindOtherNames(record, format);
}

void ThrowUnknownFormat(const OrderedJson& record) {
  if (IsPreferencePair(record)) {
    ThrowInvalidInput(
        "the records are preference pairs (chosen, rejected): a run with preference_loss sigmoid "
        "(DPO) trains on them, and evaluates those of eval_dataset; the chosen answers alone are "
        "read with prompt_template '{{prompt}}' and completion_template '{{chosen}}'");
  }
  if (const std::string names = NamesInLowerCase(record); !names.empty()) {
    ThrowInvalidInput(
        "cannot tell the format from the fields: {}; the names of fields are in lower case: write "
        "{}",
        KeysOf(record), names);
  }
  const auto has = [&record](const char* key) { return HasField(record, key); };
  if ((has("role") && has("content")) || (has("from") && has("value"))) {
    ThrowInvalidInput(
        "the records are single messages: a conversation is one record, which holds the list of "
        "its messages: {{\"messages\": [{{\"role\": ...}}, ...]}}");
  }
  if (has("user") && has("assistant")) {
    ThrowInvalidInput(
        "cannot tell the format from the fields: {}; rename user to prompt and assistant to "
        "completion, or write prompt_template '{{user}}' and completion_template '{{assistant}}'",
        KeysOf(record));
  }
  if (const std::string list = ListOfRecords(record); !list.empty()) {
    ThrowInvalidInput(
        "cannot tell the format from the fields: {}; records may not be inside another object: "
        "write the list '{}' alone, as a JSON array",
        KeysOf(record), list);
  }
  ThrowInvalidInput(
      "cannot tell the format from the fields: {}; expected text, prompt and completion, "
      "instruction and output, messages, conversations or input_ids; or say how to lay the fields "
      "out with prompt_template and completion_template",
      KeysOf(record));
}

OrderedJson AsTurns(const OrderedJson& value) {
  if (!value.is_string()) return value;
  const std::string_view text = Trim(value.get_ref<const std::string&>());
  if (!text.starts_with('[') && !text.starts_with('{')) return value;
  const auto is_turn = [](const OrderedJson& one) {
    const auto has = [&one](const char* name) { return one.is_object() && one.contains(name); };
    return has("role") || has("from") || (has("human") && has("assistant")) ||
           (has("input") && has("output"));
  };
  OrderedJson turns;
  if (!TryParseJson(text, turns)) {
    const bool holds_turns = turns.is_array() ? !turns.empty() && is_turn(turns.front())
                                              : turns.is_object() && turns.contains("role");
    return holds_turns ? turns : value;
  }
  const std::string_view inside = Trim(text.substr(text.find_first_not_of("[{ ")));
  if (inside.starts_with("'role':") || inside.starts_with("'from':")) {
    ThrowInvalidInput(
        "messages as Python prints a list, with ' for quotes, are no JSON: write the field with "
        "json.dumps");
  }
  return value;
}

OrderedJson WithNamesOfFormat(OrderedJson record, const DetectedFormat& detected) {
  for (const FieldName& name : NamesInRecord(record, detected)) {
    // A null is renamed too, so that it is reported as null and not as missing.
    if (name.ours == name.theirs || !record.contains(name.theirs) || Says(record, name.ours)) {
      continue;
    }
    OrderedJson value = std::move(record[std::string(name.theirs)]);
    record.erase(std::string(name.theirs));
    record[std::string(name.ours)] = std::move(value);
  }
  // CSV has no other way to hold a list.
  for (const char* key : {"messages", "conversations"}) {
    if (!HasField(record, key) || !record[key].is_string()) continue;
    OrderedJson list;
    const bool is_json = !TryParseJson(record[key].get_ref<const std::string&>(), list);
    record[key] = is_json && list.is_array() ? std::move(list) : AsTurns(record[key]);
  }
  if (Has(record, "prompt") && Has(record, "completion")) {
    OrderedJson prompt = AsTurns(record["prompt"]);
    OrderedJson completion = AsTurns(record["completion"]);
    if (prompt.is_array() && completion.is_array()) {
      record["prompt"] = std::move(prompt);
      record["completion"] = std::move(completion);
    }
  }
  return record;
}

std::string DescribeFieldNames(const std::vector<FieldName>& names) {
  std::string text;
  for (const FieldName& name : names) {
    text += text.empty() ? "" : ", ";
    text += name.ours;
    if (name.theirs != name.ours) text.append(": ").append(name.theirs);
  }
  return text;
}

// Tables write null for a value that is missing, so null counts as absent.
bool HasField(const OrderedJson& record, const char* key) {
  const auto field = record.find(key);
  return field != record.end() && !field->is_null();
}

const OrderedJson& RequiredField(const OrderedJson& record, const char* key) {
  const auto field = record.find(key);
  if (field == record.end()) {
    ThrowInvalidInput("field '{}' is missing; found: {}", key, KeysOf(record));
  }
  return *field;
}

std::string TextField(const OrderedJson& record, const char* key) {
  const OrderedJson& field = RequiredField(record, key);
  if (field.is_number() || field.is_boolean()) return FormatJson(field);
  if (!field.is_string()) {
    ThrowInvalidInput("field '{}': expected text, found {}", key, field.type_name());
  }
  return field.get<std::string>();
}

}  // namespace qlora
