// A task with all that needs no model: its definition, its records, their examples.
#ifndef QLORA_TASK_PREPARED_TASK_H_
#define QLORA_TASK_PREPARED_TASK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "qlora/tasks.h"
#include "task/task_file.h"
#include "task/task_requests.h"

namespace qlora {

struct PreparedTask {
  TaskFile file;
  std::int64_t shots = 0;
  std::vector<TaskItem> items;  // of the records that are measured
  std::int64_t left_out = 0;    // records with instructions that their text does not decide
};

// Errors: InvalidInput with file and key, or file and line of a record.
PreparedTask PrepareTask(const std::string& path, const TaskOptions& options);

}  // namespace qlora

#endif  // QLORA_TASK_PREPARED_TASK_H_
