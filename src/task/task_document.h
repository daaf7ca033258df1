// One record of a task, as its definition reads it.
#ifndef QLORA_TASK_TASK_DOCUMENT_H_
#define QLORA_TASK_TASK_DOCUMENT_H_

#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "jinja/jinja.h"
#include "task/instruction_checks.h"
#include "task/task_file.h"

namespace qlora {

// What the text of a Jinja template may stand for, besides itself.
struct Reading {
  bool digits = false;  // digits are a whole number
  bool list = false;    // what Python reads as a list is that list
};

// A key doc_to_... of a definition: the name of a column, a Jinja text, a list, or a value. Of a
// list, the texts with braces are Jinja texts, and all others stand for themselves.
class TaskField {
 public:
  // null: not given. name: of the key, with the file, for messages. Errors: InvalidInput for a
  // Jinja text that is malformed.
  TaskField(const OrderedJson& spec, const std::string& name);

  bool is_given() const { return !spec_.is_null(); }
  // The value for a record. Errors: InvalidInput with the place in the text.
  OrderedJson Fill(const OrderedJson& record, Reading reading) const;

 private:
  OrderedJson spec_;
  std::optional<JinjaTemplate> text_;
  std::vector<std::optional<JinjaTemplate>> items_;  // of a list; nothing: the item as it is
};

// A value as Python's str() writes a text or a number; lists and the like are errors.
std::string TextOf(const OrderedJson& value, const std::string& what);

struct TaskDocument {
  // kMultipleChoice: the text before the choices; kGenerate: before the answer; kRolling: "".
  std::string text;
  // The text of the answer: of the right choice, or the text that is measured or compared with.
  std::string target;
  std::vector<std::string> choices;
  std::vector<std::int64_t> gold;         // the right choices; several count alike
  std::vector<Instruction> instructions;  // of IFEval
  // Where doc_to_text gives the number of the right choice, choices are texts before the target.
  bool has_contexts = false;
};

// Reads records for one task.
class TaskReader {
 public:
  // Errors: as TaskField.
  explicit TaskReader(const TaskFile& task);

  // Errors: InvalidInput, without the place of the record, where a field of the record is missing
  // or of another form than the task needs.
  TaskDocument Read(const OrderedJson& record) const;

 private:
  void ReadChoices(const OrderedJson& record, TaskDocument& document) const;

  const TaskFile& task_;
  TaskField text_;
  TaskField target_;
  TaskField choice_;
};

// The record with the fields that HellaSwag's process_docs adds: query, choices, gold.
OrderedJson HellaswagRecord(const OrderedJson& record);

}  // namespace qlora

#endif  // QLORA_TASK_TASK_DOCUMENT_H_
