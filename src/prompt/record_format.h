// The formats of records: which fields are prompt, answer or messages.
#ifndef QLORA_PROMPT_RECORD_FORMAT_H_
#define QLORA_PROMPT_RECORD_FORMAT_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"

namespace qlora {

enum class RecordFormat {
  kAuto,              // by the keys of the first records
  kRaw,               // one long text, cut into windows of max_length tokens
  kText,              // {"text"}
  kPromptCompletion,  // {"prompt", "completion"}: texts, or lists of messages
  kInstruction,       // {"instruction", "input", "output"}, the form of Alpaca
  kTemplate,          // any fields, laid out by prompt_template and completion_template
  kShareGpt,          // {"conversations"}, {"conversation"}
  kMessages,          // {"messages"}
  kInputIds,          // {"input_ids", "labels"}: used as they are
  kDecision,          // {"state", "questions", "answers"} and others: decision/decision_record.h
};
std::string_view RecordFormatName(RecordFormat format);
// True when every record is a conversation.
bool IsConversationFormat(RecordFormat format);
// Errors: InvalidInput listing the names, which are auto, raw (txt), text, prompt_completion
// (completion), alpaca (instruction), template, sharegpt, messages (chat, openai) and input_ids
// (tokenized).
RecordFormat ParseRecordFormat(std::string_view name);

// The name that a file gives to a field of a format: "question" for "prompt". Often both are equal.
struct FieldName {
  std::string_view ours;
  std::string_view theirs;
};

struct DetectedFormat {
  RecordFormat format = RecordFormat::kAuto;
  std::vector<FieldName> names;  // empty: the fields have the names of the format
};

// Returns the format of `record` by its keys; a key whose value is null counts as absent. Nothing
// when the keys do not tell, or tell of several formats. `has_template`: the user gives a
// prompt_template.
std::optional<DetectedFormat> DetectRecordFormat(const OrderedJson& record, bool has_template);
// Returns the format that the user named; nothing when the record lacks its fields.
std::optional<DetectedFormat> DetectFieldNames(const OrderedJson& record, RecordFormat format);
// Says why DetectRecordFormat finds nothing. Errors: InvalidInput, without a place, listing the
// keys.
[[noreturn]] void ThrowUnknownFormat(const OrderedJson& record);

// Returns the list of turns, or the message, that a text holds as JSON; the value itself where it
// is none. Errors: InvalidInput for turns as Python prints them, which pandas writes into CSV.
OrderedJson AsTurns(const OrderedJson& value);

// Returns the record with the names of the format, and lists of messages that are written as a text
// with JSON as lists. Where the field of the file's name says nothing in this record, and one other
// name of it does, that one is read.
OrderedJson WithNamesOfFormat(OrderedJson record, const DetectedFormat& detected);
// Returns "prompt: question, completion: answer": how each field is read.
std::string DescribeFieldNames(const std::vector<FieldName>& names);

// True for a field that is present and not null.
bool HasField(const OrderedJson& record, const char* key);
// The value of a field that must be text; numbers, true and false are text as JSON writes them.
// Errors: InvalidInput, without a place, listing the keys.
std::string TextField(const OrderedJson& record, const char* key);
// Returns a field that must be present. Errors: as TextField.
const OrderedJson& RequiredField(const OrderedJson& record, const char* key);

}  // namespace qlora

#endif  // QLORA_PROMPT_RECORD_FORMAT_H_
