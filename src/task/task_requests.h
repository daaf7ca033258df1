// The texts of a task's records, with their examples, and their tokens.
#ifndef QLORA_TASK_TASK_REQUESTS_H_
#define QLORA_TASK_TASK_REQUESTS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "qlora/model.h"
#include "records/record_file.h"
#include "task/task_document.h"
#include "task/task_file.h"

namespace qlora {

// The records of all files of a split, in the order of the files.
class TaskRecords {
 public:
  // Errors: InvalidInput as RecordFile; for a split without records.
  explicit TaskRecords(const TaskSplit& split);

  std::int64_t size() const { return begins_.back(); }
  // The first record of each file, then the number of all.
  const std::vector<std::int64_t>& begins() const { return begins_; }
  OrderedJson Read(std::int64_t i) const;
  std::string Where(std::int64_t i) const;  // "data.jsonl:17"

 private:
  std::int64_t FileOf(std::int64_t i) const;

  std::vector<RecordFile> files_;
  std::vector<std::int64_t> begins_ = {0};
};

struct TaskItem {
  TaskDocument document;
  std::int64_t record = 0;  // its number in the split
  std::string context;      // description, examples and the text of the record
};

// The records of a task as texts. shots: examples before each. limit: of the records, 0: all.
// Errors: InvalidInput with file and line.
std::vector<TaskItem> MakeItems(const TaskFile& task, std::int64_t shots, std::int64_t seed,
                                std::int64_t limit);

// A tokenizer as tasks use it.
struct TaskTokens {
  std::function<std::vector<std::int32_t>(std::string_view text, bool special_tokens)> encode;
  bool add_bos_token = false;
  std::int32_t start = 0;  // stands for an empty context
  std::int64_t limit = 0;  // tokens that the model reads
};

// The request for the choices of a record: one, or one for each choice where they are contexts.
std::vector<ScoreRequest> ChoiceRequests(const TaskItem& item, const std::string& delimiter,
                                         const TaskTokens& tokens);
// The windows of a text, of which every token is predicted once: the first behind the start token,
// each later one behind as many of the tokens before it as fit.
std::vector<ScoreRequest> RollingRequests(std::string_view text, const TaskTokens& tokens);

}  // namespace qlora

#endif  // QLORA_TASK_TASK_REQUESTS_H_
