#include "task/decision_task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "base/stopwatch.h"
#include "decision/class_labels.h"
#include "decision/decision_options.h"
#include "decision/decision_record.h"
#include "decision/decision_template.h"
#include "io/json.h"
#include "records/record_error.h"
#include "task/paired_tests.h"
#include "task/task_requests.h"

namespace qlora {
namespace {

// The records that are measured.
std::int64_t MeasuredRecords(const TaskRecords& records, std::int64_t limit) {
  return limit > 0 ? std::min(limit, records.size()) : records.size();
}

DecisionFields RecordFields(const TaskFile& task, const TaskSplit& split) {
  const DecisionReading& reading = task.decision;
  DecisionFields fields = {reading.text_column, reading.label_column, reading.label_names,
                           reading.instructions};
  if (fields.label_names.empty()) {
    fields.label_names = FindClassLabels(split.files.front(), reading.label_column);
  }
  return fields;
}

// The options of an evaluation of the first records of the files.
EvalOptions OptionsOf(const TaskFile& task, const TaskSplit& split, const TaskRecords& records,
                      std::int64_t limit) {
  EvalOptions eval;
  const std::int64_t count = MeasuredRecords(records, limit);
  for (std::size_t f = 0; f < split.files.size(); ++f) {
    const std::int64_t begin = records.begins()[f];
    if (begin >= count) break;
    const std::string name = split.files[f].string();
    const bool is_whole = records.begins()[f + 1] <= count;
    eval.dataset.push_back(is_whole ? name : fmt::format("{}[:{}]", name, count - begin));
  }
  eval.reading.dataset_format = "decision";
  // All models are measured on all records.
  eval.reading.over_long = "error";
  eval.reading.decision = task.decision;
  return eval;
}

// The types of questions that are asked. Reads what of the definition needs no model.
std::vector<QuestionType> TypesOf(const TaskFile& task) {
  return NamePlace([&] { return task.path.string(); },
                   [&] {
                     EvalOptions eval;
                     eval.reading.decision = task.decision;
                     eval.Check();
                     const std::string& choice = task.decision.decision_template;
                     const bool is_file = !choice.empty() && choice != "plain" && choice != "chat";
                     if (is_file) DecisionTemplate(ReadTextFile(choice), choice);
                     return ParseQuestionTypes(
                         fmt::format("{}", fmt::join(task.decision.question_types, ",")),
                         "question_types");
                   });
}

// What a question counts for in part `part` of a metric.
double ScoreOf(const DecisionScore& score, const std::string& metric, std::int64_t part) {
  if (metric == "accuracy") return score.is_right ? 1 : 0;
  if (metric == "log_loss") return score.log_loss;
  if (metric == "brier") return score.brier;
  return score.bin == part ? score.gap : 0;
}

TaskFigure FigureOf(const TaskMetric& metric, const DecisionResult& result, double value,
                    std::int64_t bins) {
  TaskFigure figure;
  figure.name = metric.name;
  figure.higher_is_better = metric.higher_is_better;
  figure.is_mean = metric.name != "ece";
  figure.value = value;
  const std::size_t parts = figure.is_mean ? 1 : static_cast<std::size_t>(bins);
  std::int64_t record = -1;
  for (const DecisionScore& score : result.scores) {
    if (score.record != record) {
      record = score.record;
      figure.numerators.resize(figure.numerators.size() + parts);
      figure.denominators.push_back(0);
    }
    double* const counts = &figure.numerators[figure.numerators.size() - parts];
    for (std::size_t part = 0; part < parts; ++part) {
      counts[part] += ScoreOf(score, metric.name, static_cast<std::int64_t>(part));
    }
    ++figure.denominators.back();
  }
  if (figure.is_mean) {
    figure.standard_error = StandardError(figure.numerators, figure.denominators);
  }
  return figure;
}

// A record with the state that was asked about, and the answers to its questions.
std::vector<std::string> SamplesOf(const TaskFile& task, const DecisionResult& result,
                                   const TaskRecords& records, const DecisionFields& fields) {
  std::vector<OrderedJson> samples;
  std::size_t begin = 0;
  for (const DecisionScore& score : result.scores) {
    const std::size_t end = result.predictions.find('\n', begin);
    OrderedJson answer =
        ParseOrderedJson(result.predictions.substr(begin, end - begin), "predictions");
    begin = end + 1;
    answer.erase("record");
    if (samples.empty() || samples.back()["doc"] != score.record) {
      const DecisionRecord record = ReadDecisionRecord(records.Read(score.record), fields);
      samples.push_back({{"task", task.name},
                         {"doc", score.record},
                         {"context", record.decision.state},
                         {"questions", OrderedJson::array()}});
    }
    for (const char* metric : {"accuracy", "log_loss", "brier"}) {
      answer[metric] = ScoreOf(score, metric, 0);
    }
    samples.back()["questions"].push_back(std::move(answer));
  }
  std::vector<std::string> lines;
  for (const OrderedJson& sample : samples) lines.push_back(FormatJson(sample));
  return lines;
}

}  // namespace

void CheckDecisions(const TaskFile& task, const TaskOptions& options) {
  const std::string where = task.path.string();
  if (options.num_fewshot > 0 || options.add_bos_token) {
    ThrowInvalidInput(
        "{}: {} would have no effect on decisions; measure them by a command of "
        "their own",
        where, options.add_bos_token ? "add_bos_token" : "num_fewshot");
  }
  const std::vector<QuestionType> types = TypesOf(task);
  const TaskSplit& split = SplitNamed(task, task.test_split);
  const TaskRecords records(split);
  const DecisionFields fields = RecordFields(task, split);
  bool is_answered = false;
  std::set<DecisionForm> forms;
  for (std::int64_t i = 0; i < MeasuredRecords(records, options.limit); ++i) {
    NamePlace([&] { return records.Where(i); },
              [&] {
                const OrderedJson written = records.Read(i);
                const DecisionRecord record = ReadDecisionRecord(written, fields);
                forms.insert(*DetectDecisionForm(written, fields));
                for (std::size_t q = 0; q < record.targets.size(); ++q) {
                  const QuestionType type = record.decision.questions[q].type;
                  is_answered |= record.targets[q] && std::ranges::count(types, type) > 0;
                }
              });
  }
  NamePlace([&] { return where; },
            [&] { CheckRead(GivenOptions(task.decision), forms, split.files.front().string()); });
  if (!is_answered) {
    ThrowInvalidInput("{}: no question of question_types {} has an answer", where,
                      fmt::join(task.decision.question_types, ", "));
  }
}

TaskResult RunDecisions(Model& model, const TaskFile& task, const TaskOptions& options,
                        const TaskProgress& progress) {
  const Stopwatch watch;
  const TaskSplit& split = SplitNamed(task, task.test_split);
  const TaskRecords records(split);
  EvalOptions eval = OptionsOf(task, split, records, options.limit);
  eval.reading.max_length = model.context_length();
  const EvalResult evaluated = model.Evaluate(eval, progress);
  const DecisionResult& decision = *evaluated.decision;
  const OrderedJson metrics = ParseOrderedJson(decision.metrics, "metrics");
  TaskResult result;
  result.task = task.name;
  for (const TaskMetric& metric : task.metrics) {
    const double value = metrics.at("all").at(metric.name).get<double>();
    result.figures.push_back(FigureOf(metric, decision, value, eval.ece_bins));
  }
  result.records = std::ssize(result.figures.front().denominators);
  result.samples = SamplesOf(task, decision, records, RecordFields(task, split));
  if (!evaluated.warning.empty()) {
    result.note = fmt::format("{}: {}", task.name, evaluated.warning);
  }
  result.seconds = watch.seconds();
  return result;
}

}  // namespace qlora
