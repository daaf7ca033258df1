#include "data/record_format.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/text.h"

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
    {RecordFormat::kInputIds, "input_ids", "tokenized"}};

// "question, answer": what a message shows of a record that lacks a field.
std::string KeysOf(const OrderedJson& record) {
  std::string keys;
  for (const auto& item : record.items()) keys += (keys.empty() ? "" : ", ") + item.key();
  return keys.empty() ? "none" : keys;
}

}  // namespace

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
      "unknown data format '{}'; known are auto, raw, text, prompt_completion, alpaca, template, "
      "sharegpt, messages and input_ids",
      name);
}

// Most specific first: tokens that someone has prepared win over the text that is often kept with
// them, and a template that the user wrote wins over the names that fields happen to have.
RecordFormat DetectRecordFormat(const OrderedJson& record, bool has_template) {
  const auto has = [&record](const char* key) { return HasField(record, key); };
  if (has("input_ids")) return RecordFormat::kInputIds;
  if (has_template) return RecordFormat::kTemplate;
  if (has("messages")) return RecordFormat::kMessages;
  if (has("conversations")) return RecordFormat::kShareGpt;
  if (has("prompt") && has("completion")) return RecordFormat::kPromptCompletion;
  if (has("instruction") && has("output")) return RecordFormat::kInstruction;
  if (has("text")) return RecordFormat::kText;
  if (has("chosen") && has("rejected")) {
    ThrowInvalidInput(
        "the records are preference pairs (chosen, rejected), which are not trained on; training "
        "is supervised fine-tuning, for example on prompt_template '{{prompt}}' and "
        "completion_template '{{chosen}}'");
  }
  ThrowInvalidInput(
      "cannot tell the format from the fields: {}; expected text, prompt and completion, "
      "instruction and output, messages, conversations or input_ids; or say how to lay the fields "
      "out with prompt_template and completion_template",
      KeysOf(record));
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

const std::string& TextField(const OrderedJson& record, const char* key) {
  const OrderedJson& field = RequiredField(record, key);
  if (!field.is_string()) {
    ThrowInvalidInput("field '{}': expected text, found {}", key, field.type_name());
  }
  return field.get_ref<const std::string&>();
}

}  // namespace qlora
