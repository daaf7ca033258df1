// Evaluation tasks: multiple choice, perplexity and generated answers, by definitions in the form
// of lm-evaluation-harness 0.4, and decisions.
#ifndef QLORA_TASKS_H_
#define QLORA_TASKS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "qlora/model.h"
#include "qlora/options.h"

namespace qlora {

struct TaskOptions {
  std::vector<std::string> task;       // definitions, YAML files, or files of decisions
  std::vector<std::string> task_data;  // SPLIT=FILE: in place of the files of the definitions
  std::int64_t num_fewshot = -1;       // -1: as the definition says
  std::int64_t fewshot_seed = 1234;
  bool add_bos_token = false;  // BOS in front of contexts, where the tokenizer puts it
  std::int64_t limit = 0;      // records of each task; 0: all

  void Declare(OptionTable& table);
};

// A figure over the records of a task: Value = f(sum of numerators / sum of denominators). Where
// numerators have parts, the one sum is that of |the sum of a part| over all parts.
struct TaskFigure {
  std::string name;  // "acc"; "exact_match,strict-match" where the task has several filters
  bool higher_is_better = true;
  double value = 0;
  double standard_error = 0;         // of a mean
  bool is_mean = true;               // false: a perplexity, bits per byte, or an error of bins
  std::vector<double> numerators;    // (records, parts)
  std::vector<double> denominators;  // (records)
};

struct TaskResult {
  std::string task;
  std::int64_t num_fewshot = 0;
  std::int64_t records = 0;
  std::vector<TaskFigure> figures;
  std::vector<std::string> samples;  // a JSON object for each record, which begins with the task
  std::string note;                  // what is left out, or ""
  double seconds = 0;
};

// Reads the definitions and their records, before a model is loaded. Errors: InvalidInput as
// EvaluateTask, for two tasks of one name, and for data that no task reads.
void CheckTasks(const TaskOptions& options);

// Measures a model by the definition, or the decisions, at `path`. progress: receives what is done
// of all requests. Errors: InvalidInput with file and key, or file and line of a record.
using TaskProgress = std::function<void(std::int64_t done, std::int64_t total)>;
TaskResult EvaluateTask(Model& model, const std::string& path, const TaskOptions& options,
                        const TaskProgress& progress = {});

// Two results of one task over the same records.
struct TaskComparison {
  std::string name;       // of the figure
  double first = 0;       // the figure of `first`
  double second = 0;      // the figure of `second`
  double difference = 0;  // second - first, of perplexities of their logarithms
  double low = 0;         // of the difference: 95 % interval by paired bootstrap over records
  double high = 0;
  // Exact where records count whole numbers, McNemar's where these are 0 or 1; otherwise the
  // bootstrap's.
  double p = 1;
  std::string test;  // "McNemar", "sign flips", "bootstrap"
  bool higher_is_better = true;
};
// Errors: InvalidInput for results of other tasks or numbers of records.
std::vector<TaskComparison> CompareTasks(const TaskResult& first, const TaskResult& second);

// What an adapter may lose: a YAML file with a list `tasks` of
//   task: FILE        a definition, or decisions, relative to the suite
//   figure: NAME      of the definition; without it, its first
//   max_loss: X       of the figure, 0 without it; of perplexities, of their logarithms
//   p: X              a loss that chance explains with a greater probability is none; 0.05
//   num_fewshot, limit: as in TaskOptions
struct GateTask {
  std::string path;
  std::string figure;
  double max_loss = 0;
  double p = 0.05;
  TaskOptions options;
};
struct GateSuite {
  std::string path;  // of the file
  std::vector<GateTask> tasks;
};
// Errors: InvalidInput with file and key; also for a definition that is not sound.
GateSuite ReadGateSuite(const std::string& path);
// The results of a model by each task of the suite.
std::vector<TaskResult> MeasureGate(Model& model, const GateSuite& suite,
                                    const TaskProgress& progress = {});

struct GateVerdict {
  std::string task;
  TaskComparison figure;  // of the base and of the adapter
  double max_loss = 0;
  bool lost = false;                  // more than the suite allows, or no number
  bool by_chance = false;             // more than that, which chance explains: not lost
  std::vector<std::string> examples;  // samples of the adapter that lost most, the worst first
};
std::vector<GateVerdict> JudgeGate(const GateSuite& suite, const std::vector<TaskResult>& base,
                                   const std::vector<TaskResult>& adapter);

}  // namespace qlora

#endif  // QLORA_TASKS_H_
