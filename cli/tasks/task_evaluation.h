// `qlora eval --task`: figures of evaluation tasks, of one model or of several beside one another.
#ifndef QLORA_CLI_TASKS_TASK_EVALUATION_H_
#define QLORA_CLI_TASKS_TASK_EVALUATION_H_

#include <string>
#include <vector>

#include "command/common.h"
#include "command/verb.h"
#include "qlora/model.h"
#include "qlora/tasks.h"
#include "terminal/task_table.h"

namespace qlora {

class TaskEvaluation {
 public:
  void Declare(OptionTable& table);
  bool is_asked() const { return !options_.task.empty(); }

  // compared: adapters, or "base", whose figures stand beside those of the last of them; empty: the
  // model as it is. Errors: as EvaluateTask.
  int Run(Context& context, const ModelOptions& model, const std::vector<std::string>& compared,
          bool overwrite, bool json, const Console& console);

 private:
  ModelTasks Measure(Context& context, ModelOptions model, const std::string& name,
                     const Console& console) const;
  OrderedJson ToJson(const std::vector<ModelTasks>& models) const;

  TaskOptions options_;
  OutputFile samples_;
};

}  // namespace qlora

#endif  // QLORA_CLI_TASKS_TASK_EVALUATION_H_
