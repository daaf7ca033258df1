// Tasks of decisions: questions about a state, judged by the probabilities of their options as
// `eval` judges them.
#ifndef QLORA_TASK_DECISION_TASK_H_
#define QLORA_TASK_DECISION_TASK_H_

#include "qlora/tasks.h"
#include "task/task_file.h"

namespace qlora {

// What needs no model. Errors: InvalidInput with file and line of a record that is no decision, for
// records whose questions have no answers, and for options of other tasks.
void CheckDecisions(const TaskFile& task, const TaskOptions& options);

// A model asks in the template, and with the temperatures, that it was trained with, unless the
// definition names a template. Errors: as Model::Evaluate; for a prompt beyond the context.
TaskResult RunDecisions(Model& model, const TaskFile& task, const TaskOptions& options,
                        const TaskProgress& progress);

}  // namespace qlora

#endif  // QLORA_TASK_DECISION_TASK_H_
