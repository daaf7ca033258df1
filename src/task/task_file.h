// The definition of an evaluation task: a YAML file in the form of lm-evaluation-harness 0.4, or a
// file of decisions.
#ifndef QLORA_TASK_TASK_FILE_H_
#define QLORA_TASK_TASK_FILE_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/json.h"
#include "qlora/data.h"

namespace qlora {

// Answers to multiple choices, texts whose tokens are predicted, answers that are generated,
// questions about a state.
enum class TaskKind { kMultipleChoice, kRolling, kGenerate, kDecision };

struct TaskMetric {
  std::string name;
  // Of exact_match: what is taken out of both texts before they are compared, in this order.
  std::vector<std::string> regexes_to_ignore;
  bool ignore_case = false;
  bool ignore_punctuation = false;
  bool ignore_numbers = false;
  bool higher_is_better = true;
};

struct FilterStep {
  enum Kind { kRegex, kTakeFirst, kRemoveWhitespace, kLowercase };
  Kind kind = kTakeFirst;
  std::string pattern;            // kRegex
  std::int64_t group_select = 0;  // kRegex: the match that counts; -1: the last
  std::string fallback = "[invalid]";
};
struct TaskFilter {
  std::string name;
  std::vector<FilterStep> steps;
};

struct TaskSplit {
  std::string name;  // "test"
  std::vector<std::filesystem::path> files;
};

struct TaskFile {
  std::filesystem::path path;
  std::string name;
  TaskKind kind = TaskKind::kMultipleChoice;
  std::vector<TaskSplit> splits;
  std::string test_split;     // what is measured
  std::string fewshot_split;  // whence examples come
  std::int64_t num_fewshot = 0;
  bool first_n = false;  // the examples are the first rows, nothing is drawn
  std::string description;
  std::string target_delimiter = " ";
  std::string fewshot_delimiter = "\n\n";
  // A column's name, a Jinja text, a list of texts, or a number; null: not given.
  OrderedJson doc_to_text;
  OrderedJson doc_to_target;
  OrderedJson doc_to_choice;
  bool reads_hellaswag = false;      // records get the fields that HellaSwag's process_docs makes
  bool checks_instructions = false;  // answers are judged by the instructions of IFEval
  std::vector<std::string> until;
  std::int64_t max_gen_toks = 256;
  std::vector<TaskFilter> filters;  // at least one; of kGenerate it may do something
  std::vector<TaskMetric> metrics;
  DecisionReading decision;  // kDecision: how records are read
};

// The file of a task: `name` in `folder`, or where there is none, the definition of that name that
// was installed with the program: "arc".
std::filesystem::path FindTaskFile(const std::filesystem::path& folder, const std::string& name);

// Reads a definition, and those that it includes; a data file is a task of decisions with all their
// metrics. Errors: InvalidInput with file and key for a key that is not known, a function of
// Python, a rule that is not supported, a metric or filter that does not fit the kind of task, or a
// pattern that is malformed.
TaskFile ReadTaskFile(const std::filesystem::path& path);

// The names of the figures that the task gives, in their order: "acc"; "exact_match,strict-match"
// where there are several filters.
std::vector<std::string> FigureNames(const TaskFile& task);

// The files of a split. Errors: InvalidInput where the definition names none, or one that is not
// there.
const TaskSplit& SplitNamed(const TaskFile& task, const std::string& name);

}  // namespace qlora

#endif  // QLORA_TASK_TASK_FILE_H_
