// The fields that mean something in records and messages, whatever their format, and the roles.
//
// The rule of all formats: a field is used, or a warning names it and says what it would mean, or
// it is refused; refused is what reads like a part of the conversation (data/audit/text_audit.h).
// Fields that are not in this table are named.
#ifndef QLORA_PROMPT_KNOWN_FIELDS_H_
#define QLORA_PROMPT_KNOWN_FIELDS_H_

#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"

namespace qlora {

enum class FieldMeaning {
  kSystem,       // the system text of a record
  kTools,        // the tools of a record
  kVariables,    // variables of the chat template, for one record: an object
  kVariable,     // one such variable
  kPrompt,       // what the model reads, in some formats
  kAnswer,       // what the model writes, in some formats
  kThoughts,     // what the assistant thought before it spoke
  kFlag,         // whether an answer is trained on
  kCalls,        // calls of tools of a message
  kMask,         // which of the tokens of a record are trained on
  kPartMask,     // which parts of an answer are trained on
  kUnclearMask,  // whether an answer is trained on, in a sense that the name does not tell
  kUnclearPart,  // a part of the conversation, of which the name does not tell the place
  kOther,        // used by one format at most
};

struct KnownField {
  std::string_view name;
  FieldMeaning meaning;
  std::string_view text;   // for people: what it means, and why it is not used where it is not
  bool in_records = true;  // false: this is known of messages alone
};

// null: the table does not have the field.
const KnownField* FindKnownField(std::string_view name);
// True for a field of this meaning; of one meaning, all names are synonyms.
bool IsKnownAs(std::string_view name, FieldMeaning meaning);

// True for a field, in capitals or not, that reads like a part of the conversation: what the model
// reads or writes, a system text, tools, thoughts.
bool IsPartOfConversation(std::string_view name);
// Returns the name that such a field has here: "system_prompt" of "systemPrompt"; "" for others.
std::string_view NameOfPart(std::string_view name);

// The names of one meaning, the most usual first.
std::vector<std::string> NamesOf(FieldMeaning meaning);

struct FoundField {
  std::string name;
  const OrderedJson* value = nullptr;  // null: there is none

  explicit operator bool() const { return value != nullptr; }
};
// Returns the field of `object` with this meaning, under any of its names, that says something.
// Errors: InvalidInput when two of them say different things.
FoundField FindByMeaning(const OrderedJson& object, FieldMeaning meaning);

// True for null, an empty text, list or object: the same as no field.
bool SaysNothing(const OrderedJson& value);

// The roles that templates know. Of every other role, the names that people use:
//   user       human
//   assistant  gpt chatgpt bing bard model bot ai
//   tool       observation function function_response tool_response ipython
//   system     developer
//   function_call   an assistant's message whose content is a call, as JSON: tool_call
// Returns `role` itself when it is none of these.
std::string_view RoleOfTemplates(std::string_view role);
// True for a name that some templates know as well, so that it is kept where the template shows it.
bool IsRoleOfSomeTemplates(std::string_view role);
// The other names of a role that some templates know: observation, ... of tool.
std::vector<std::string> OtherNamesOfRole(std::string_view role);
inline constexpr std::string_view kCallRole = "function_call";

}  // namespace qlora

#endif  // QLORA_PROMPT_KNOWN_FIELDS_H_
