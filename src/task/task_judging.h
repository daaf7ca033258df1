// How a task judges answers: what its filters take of them, and what its metrics compute.
#ifndef QLORA_TASK_TASK_JUDGING_H_
#define QLORA_TASK_TASK_JUDGING_H_

#include <vector>

#include "task/definition_keys.h"
#include "task/task_file.h"

namespace qlora {

// The metrics of a definition that names none: the defaults of lm-evaluation-harness, and of
// decisions all.
std::vector<TaskMetric> UsualMetrics(TaskKind kind);

// Reads filter_list and metric_list into a task whose kind is known. Errors: as of ReadTaskFile.
void ReadJudging(const DefinitionKeys& keys, TaskFile& task);

}  // namespace qlora

#endif  // QLORA_TASK_TASK_JUDGING_H_
