// What the fields of a record mean.
#ifndef QLORA_DATA_RECORD_FORMAT_H_
#define QLORA_DATA_RECORD_FORMAT_H_

#include <string>
#include <string_view>

#include "io/json_fwd.h"

namespace qlora {

enum class RecordFormat {
  kAuto,              // by the keys of the first record
  kRaw,               // one long text, cut into windows of max_length tokens
  kText,              // {"text"}
  kPromptCompletion,  // {"prompt", "completion"}: texts, or lists of messages
  kInstruction,       // {"instruction", "input", "output"}, the form of Alpaca
  kTemplate,          // any fields, laid out by prompt_template and completion_template
  kShareGpt,          // {"conversations"}
  kMessages,          // {"messages"}
  kInputIds,          // {"input_ids", "labels"}: used as they are
};
std::string_view RecordFormatName(RecordFormat format);
// Errors: InvalidInput listing the names, which are auto, raw (txt), text, prompt_completion
// (completion), alpaca (instruction), template, sharegpt, messages (chat, openai) and input_ids
// (tokenized).
RecordFormat ParseRecordFormat(std::string_view name);

// The format of `record` by its keys. `has_template`: the user gives a prompt_template.
// Errors: InvalidInput, without a place, listing the keys.
RecordFormat DetectRecordFormat(const OrderedJson& record, bool has_template);

// A field that is present and not null.
bool HasField(const OrderedJson& record, const char* key);
// The value of a field that must be text. Errors: InvalidInput, without a place, listing the keys.
const std::string& TextField(const OrderedJson& record, const char* key);
// A field that must be present. Errors: as TextField.
const OrderedJson& RequiredField(const OrderedJson& record, const char* key);

}  // namespace qlora

#endif  // QLORA_DATA_RECORD_FORMAT_H_
