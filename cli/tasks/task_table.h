// The figures of evaluation tasks as tables.
#ifndef QLORA_CLI_TASKS_TASK_TABLE_H_
#define QLORA_CLI_TASKS_TASK_TABLE_H_

#include <string>
#include <vector>

#include "io/json_fwd.h"
#include "qlora/tasks.h"

namespace qlora {

// The results of one model, one for each task.
struct ModelTasks {
  std::string name;  // "base", or an adapter
  std::vector<TaskResult> results;
};

// {"n": 20, "acc": 0.65, "acc_stderr": 0.109}.
OrderedJson FiguresJson(const TaskResult& result);
OrderedJson ComparisonJson(const TaskComparison& row);

std::string TaskTable(const std::vector<TaskResult>& results);
// Each model beside the last, with the interval of the difference drawn around 0.
std::string TaskComparisonTable(const std::vector<ModelTasks>& models);

}  // namespace qlora

#endif  // QLORA_CLI_TASKS_TASK_TABLE_H_
