#include "qlora/tasks.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "io/json.h"
#include "io/pattern.h"
#include "task/answer_text.h"
#include "task/decision_task.h"
#include "task/paired_tests.h"
#include "task/prepared_task.h"

namespace qlora {
namespace {

// Index of the first largest.
std::int64_t Best(const std::vector<double>& values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

// Measures one task: requests, passes, figures.
class TaskRun {
 public:
  TaskRun(Model& model, PreparedTask task, const TaskOptions& options, const TaskProgress& progress)
      : model_(model),
        task_(std::move(task.file)),
        items_(std::move(task.items)),
        progress_(progress) {
    if (!model.start_token()) {
      ThrowInvalidInput(
          "{}: the model has neither BOS nor EOS, one of which stands for the start "
          "of a text",
          task_.path.string());
    }
    tokens_ = {
        [&model](std::string_view text, bool special) { return model.Tokenize(text, special); },
        options.add_bos_token, *model.start_token(), model.context_length()};
    result_.task = task_.name;
    result_.num_fewshot = task.shots;
    result_.records = std::ssize(items_);
    if (task.left_out > 0) {
      result_.note = fmt::format(
          "{}: {} of {} records are left out: the text alone does not decide their instructions",
          task_.name, task.left_out, task.left_out + result_.records);
    }
    AddFigures();
  }

  TaskResult Run() {
    const Stopwatch watch;
    switch (task_.kind) {
      case TaskKind::kMultipleChoice:
        RunChoices();
        break;
      case TaskKind::kRolling:
        RunRolling();
        break;
      case TaskKind::kGenerate:
        RunAnswers();
        break;
      case TaskKind::kDecision:  // RunDecisions
        break;
    }
    for (TaskFigure& figure : result_.figures) Finish(figure);
    result_.seconds = watch.seconds();
    return std::move(result_);
  }

 private:
  // In the order of FigureNames: those of the metrics, filter by filter.
  void AddFigures() {
    std::size_t metric = 0;
    for (std::string& name : FigureNames(task_)) {
      TaskFigure& figure = result_.figures.emplace_back();
      figure.name = std::move(name);
      figure.higher_is_better = task_.metrics[metric++ % task_.metrics.size()].higher_is_better;
      figure.is_mean = task_.kind != TaskKind::kRolling;
    }
  }
  // How the sample of a record begins.
  OrderedJson SampleOf(const TaskItem& item) const {
    return {{"task", task_.name}, {"doc", item.record}};
  }
  static void Count(TaskFigure& figure, double numerator, double denominator = 1) {
    figure.numerators.push_back(numerator);
    figure.denominators.push_back(denominator);
  }

  static void Finish(TaskFigure& figure) {
    const double rate = Mean(figure.numerators) / Mean(figure.denominators);
    if (figure.is_mean) {
      figure.value = rate;
      figure.standard_error = StandardError(figure.numerators, figure.denominators);
      return;
    }
    figure.value = figure.name == "bits_per_byte" ? rate / std::log(2.0) : std::exp(rate);
  }

  // The scores of the requests of all records, in their order.
  std::vector<std::vector<ContinuationScore>> Score(
      const std::vector<std::vector<ScoreRequest>>& of_items) {
    std::vector<ScoreRequest> all;
    for (const auto& requests : of_items) all.insert(all.end(), requests.begin(), requests.end());
    const auto scores = model_.Score(all, progress_);
    std::vector<std::vector<ContinuationScore>> result;
    std::size_t at = 0;
    for (const auto& requests : of_items) {
      auto& joined = result.emplace_back();
      for (std::size_t r = 0; r < requests.size(); ++r, ++at) {
        joined.insert(joined.end(), scores[at].begin(), scores[at].end());
      }
    }
    return result;
  }

  void RunChoices() {
    std::vector<std::vector<ScoreRequest>> requests;
    for (const TaskItem& item : items_) {
      requests.push_back(ChoiceRequests(item, task_.target_delimiter, tokens_));
    }
    const auto scores = Score(requests);
    for (std::size_t i = 0; i < items_.size(); ++i) AddChoice(i, scores[i]);
  }

  void AddChoice(std::size_t i, const std::vector<ContinuationScore>& scores) {
    const TaskDocument& document = items_[i].document;
    std::vector<double> lls;
    std::vector<double> normed;
    std::vector<bool> greedy;
    std::vector<std::int64_t> counts;
    for (std::size_t k = 0; k < scores.size(); ++k) {
      lls.push_back(scores[k].logprob);
      const auto characters = static_cast<double>(CountCharacters(document.choices[k]));
      normed.push_back(scores[k].logprob / characters);
      greedy.push_back(scores[k].is_greedy);
      counts.push_back(scores[k].tokens);
    }
    const auto is_gold = [&](std::int64_t k) {
      return std::find(document.gold.begin(), document.gold.end(), k) != document.gold.end();
    };
    OrderedJson sample = SampleOf(items_[i]);
    sample.update({{"context", items_[i].context},
                   {"choices", document.choices},
                   {"gold", document.gold.size() == 1 ? OrderedJson(document.gold.front())
                                                      : OrderedJson(document.gold)},
                   {"lls", lls},
                   {"is_greedy", greedy},
                   {"tokens", counts},
                   {"pred", Best(lls)},
                   {"pred_norm", Best(normed)}});
    for (TaskFigure& figure : result_.figures) {
      const double hit = is_gold(Best(figure.name == "acc" ? lls : normed)) ? 1 : 0;
      Count(figure, hit);
      sample[figure.name] = hit;
    }
    result_.samples.push_back(FormatJson(sample));
  }

  void RunRolling() {
    std::vector<std::vector<ScoreRequest>> requests;
    for (const TaskItem& item : items_) {
      requests.push_back(RollingRequests(item.document.target, tokens_));
    }
    const auto scores = Score(requests);
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const std::string& text = items_[i].document.target;
      const auto words = static_cast<std::int64_t>(FindAll("\\s+", text, "words").size()) + 1;
      double logprob = 0;
      std::int64_t count = 0;
      for (const ContinuationScore& score : scores[i]) {
        logprob += score.logprob;
        count += score.tokens;
      }
      for (TaskFigure& figure : result_.figures) {
        const bool by_words = figure.name == "word_perplexity";
        Count(figure, -logprob,
              by_words ? static_cast<double>(words) : static_cast<double>(text.size()));
      }
      OrderedJson sample = SampleOf(items_[i]);
      sample.update({{"text", text},
                     {"ll", logprob},
                     {"tokens", count},
                     {"words", words},
                     {"bytes", text.size()}});
      result_.samples.push_back(FormatJson(sample));
    }
  }

  // All records at the same time, as many as have room.
  void RunAnswers() {
    GenerateOptions options;
    options.max_new_tokens = task_.max_gen_toks;
    std::vector<PromptText> prompts;
    for (const TaskItem& item : items_) prompts.push_back({item.context, tokens_.add_bos_token});
    std::vector<std::string> texts(items_.size());
    std::int64_t begun = 0;
    const auto next = [&](std::int64_t i) {
      begun = std::max(begun, i);
      if (progress_) progress_(begun, result_.records);
    };
    next(0);
    const std::vector<GenerateReport> answers =
        model_.Generate(prompts, options, [&](std::int64_t i, std::string_view piece) {
          next(i);
          texts[i] += piece;
          return CutAtStops(texts[i], task_.until) == texts[i];
        });
    for (std::size_t i = 0; i < items_.size(); ++i) AddAnswer(items_[i], answers[i]);
  }

  // What a metric counts of an answer, and of how much.
  std::pair<double, double> Judge(const std::string& answer, const TaskDocument& document,
                                  const TaskMetric& metric) const {
    if (metric.name == "f1") return {WordF1(answer, document.target), 1};
    if (metric.name == "exact_match") {
      return {ExactMatch(answer, document.target, metric, task_.path.string()) ? 1 : 0, 1};
    }
    const bool loose = metric.name.find("loose") != std::string::npos;
    const auto total = static_cast<double>(document.instructions.size());
    double followed = 0;
    for (const Instruction& one : document.instructions) {
      followed += (loose ? FollowsLoosely(answer, one) : Follows(answer, one)) ? 1 : 0;
    }
    if (metric.name.starts_with("inst_level")) return {followed, total};
    return {followed == total ? 1 : 0, 1};
  }

  void AddAnswer(const TaskItem& item, const GenerateReport& report) {
    const std::string text = CutAtStops(report.text, task_.until);
    OrderedJson sample = SampleOf(item);
    sample["context"] = item.context;
    sample["text"] = text;
    std::size_t figure = 0;
    for (const TaskFilter& filter : task_.filters) {
      const std::string where = task_.path.string() + ": filter_list";
      const std::string answer = Filtered(text, filter, where);
      const bool is_only = task_.filters.size() == 1;
      sample[is_only ? "filtered" : "filtered," + filter.name] = answer;
      for (const TaskMetric& metric : task_.metrics) {
        const auto [value, of] = Judge(answer, item.document, metric);
        Count(result_.figures[figure], value, of);
        sample[result_.figures[figure++].name] = value;
      }
    }
    sample["target"] = item.document.target;
    sample["tokens"] = report.new_tokens;
    result_.samples.push_back(FormatJson(sample));
  }

  Model& model_;
  TaskFile task_;
  std::vector<TaskItem> items_;
  const TaskProgress& progress_;
  TaskTokens tokens_;
  TaskResult result_;
};

}  // namespace

void TaskOptions::Declare(OptionTable& table) {
  table.Section("Tasks");
  table.AddPath(
      "task", &task,
      "definitions of tasks, YAML files in the form of lm-evaluation-harness, or files of "
      "decisions");
  table.AddPath("task_data", &task_data, "SPLIT=FILE: data in place of those of the definition");
  table.Add("num_fewshot", &num_fewshot, "examples before each record; -1: as the definition says");
  table.Add("fewshot_seed", &fewshot_seed, "random seed of the choice of examples");
  table.Add("add_bos_token", &add_bos_token, "BOS in front of each context");
  table.Add("limit", &limit, "measure the first records of each task alone; 0: all");
}

TaskResult EvaluateTask(Model& model, const std::string& path, const TaskOptions& options,
                        const TaskProgress& progress) {
  PreparedTask task = PrepareTask(path, options);
  if (task.file.kind == TaskKind::kDecision) {
    return RunDecisions(model, task.file, options, progress);
  }
  return TaskRun(model, std::move(task), options, progress).Run();
}

std::vector<TaskComparison> CompareTasks(const TaskResult& first, const TaskResult& second) {
  if (first.task != second.task || first.records != second.records ||
      first.figures.size() != second.figures.size()) {
    ThrowInvalidInput("tasks: '{}' of {} records is compared with '{}' of {}", first.task,
                      first.records, second.task, second.records);
  }
  std::vector<TaskComparison> all;
  for (std::size_t i = 0; i < first.figures.size(); ++i) {
    const TaskFigure& a = first.figures[i];
    const TaskFigure& b = second.figures[i];
    const PairedDifference difference =
        PairedBootstrap({a.numerators, b.numerators, a.denominators});
    const auto is_count = [](double x) { return x == std::floor(x); };
    const auto is_one = [](double x) { return x == 1; };
    const bool counts = a.is_mean && std::ranges::all_of(a.numerators, is_count) &&
                        std::ranges::all_of(b.numerators, is_count);
    TaskComparison& row = all.emplace_back();
    row = {a.name,          a.value,      b.value,     difference.difference, difference.low,
           difference.high, difference.p, "bootstrap", a.higher_is_better};
    if (counts) {
      row.p = ExactSignFlips(a.numerators, b.numerators);
      row.test = std::ranges::all_of(a.denominators, is_one) ? "McNemar" : "sign flips";
    }
  }
  return all;
}

}  // namespace qlora
