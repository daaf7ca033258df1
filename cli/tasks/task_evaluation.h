// `qlora eval --task`: figures of evaluation tasks, of one model or of several beside one another.
#ifndef QLORA_CLI_TASKS_TASK_EVALUATION_H_
#define QLORA_CLI_TASKS_TASK_EVALUATION_H_

#include <optional>
#include <string>
#include <vector>

#include "command/common.h"
#include "command/verb.h"
#include "qlora/model.h"
#include "qlora/tasks.h"
#include "tasks/task_table.h"

namespace qlora {

// A model of a comparison.
struct ComparedModel {
  std::string name;                  // "base", or its adapters; "" where nothing is compared
  std::vector<std::string> adapter;  // empty: the base alone
};

// The models that are measured, in their order: those named behind --compare, or the one model of
// `adapter` and the one that is named there. Nothing named: the model as it is. Errors:
// InvalidInput where a model is named twice, beside none, or by both options.
std::vector<ComparedModel> ModelsOf(const std::vector<std::string>& adapter,
                                    const std::vector<std::string>& compared);

class TaskEvaluation {
 public:
  void Declare(OptionTable& table);
  bool is_asked() const { return !options_.task.empty(); }

  // Everything is checked before a model is loaded. compared: as ModelsOf. Errors: as CheckTasks
  // and EvaluateTask.
  int Run(Context& context, const ModelOptions& model, const std::vector<std::string>& compared,
          bool overwrite, bool json, const Console& console);

 private:
  std::vector<ModelTasks> MeasureAll(Context& context, ModelOptions options,
                                     const std::vector<ComparedModel>& models,
                                     const Console& console) const;
  ModelTasks Measure(Model& model, const std::string& name, const Console& console) const;
  std::string Samples(const std::vector<ModelTasks>& models) const;
  OrderedJson ToJson(const std::vector<ModelTasks>& models) const;

  TaskOptions options_;
  OutputFile samples_;
};

}  // namespace qlora

#endif  // QLORA_CLI_TASKS_TASK_EVALUATION_H_
