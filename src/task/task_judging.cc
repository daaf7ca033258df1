#include "task/task_judging.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <string_view>
#include <utility>

#include "io/pattern.h"

namespace qlora {
namespace {

constexpr std::string_view kFilterKeys = " name filter ";
constexpr std::string_view kStepKeys = " function regex_pattern group_select fallback ";
constexpr std::string_view kMetricKeys = " metric aggregation higher_is_better ";
constexpr std::string_view kMatchKeys =
    " regexes_to_ignore ignore_case ignore_punctuation ignore_numbers ";

// What lm-evaluation-harness calls the figure of all records.
struct KnownMetric {
  std::string_view name;
  TaskKind kind;
  std::string_view aggregation = "mean";
  bool of_instructions = false;  // of IFEval's answers alone
  bool higher_is_better = true;
};
constexpr KnownMetric kMetrics[] = {
    {"acc", TaskKind::kMultipleChoice},
    {"acc_norm", TaskKind::kMultipleChoice},
    {"exact_match", TaskKind::kGenerate},
    {"f1", TaskKind::kGenerate},
    {"word_perplexity", TaskKind::kRolling, "weighted_perplexity", false, false},
    {"byte_perplexity", TaskKind::kRolling, "weighted_perplexity", false, false},
    {"bits_per_byte", TaskKind::kRolling, "bits_per_byte", false, false},
    {"accuracy", TaskKind::kDecision},
    {"log_loss", TaskKind::kDecision, "mean", false, false},
    {"brier", TaskKind::kDecision, "mean", false, false},
    {"ece", TaskKind::kDecision, "ece", false, false},
    {"prompt_level_strict_acc", TaskKind::kGenerate, "mean", true},
    {"inst_level_strict_acc", TaskKind::kGenerate, "agg_inst_level_acc", true},
    {"prompt_level_loose_acc", TaskKind::kGenerate, "mean", true},
    {"inst_level_loose_acc", TaskKind::kGenerate, "agg_inst_level_acc", true},
};

const KnownMetric* FindMetric(std::string_view name) {
  const auto* found = std::find_if(std::begin(kMetrics), std::end(kMetrics),
                                   [&](const KnownMetric& known) { return known.name == name; });
  return found == std::end(kMetrics) ? nullptr : found;
}

class JudgingReader {
 public:
  JudgingReader(const DefinitionKeys& keys, TaskFile& task) : keys_(keys), task_(task) {}

  void Run() {
    ReadFilters();
    ReadMetrics();
  }

 private:
  void ReadFilters() {
    if (const OrderedJson* filters = keys_.Find("filter_list")) {
      if (task_.kind != TaskKind::kGenerate) {
        keys_.Refuse("filter_list", "filters are for answers that are generated");
      }
      if (!filters->is_array()) keys_.Refuse("filter_list", "expected a list");
      for (const OrderedJson& json : *filters) ReadFilter(json);
    }
    if (task_.filters.empty()) task_.filters.push_back({"none", {}});
  }

  void ReadFilter(const OrderedJson& json) {
    CheckObject("filter_list", json, {kFilterKeys});
    TaskFilter filter;
    filter.name = json.value("name", "none");
    for (const TaskFilter& other : task_.filters) {
      if (other.name == filter.name) {
        keys_.Refuse("filter_list", fmt::format("two filters are named '{}'", filter.name));
      }
    }
    for (const OrderedJson& step : json.value("filter", OrderedJson::array())) {
      filter.steps.push_back(Step(step));
    }
    task_.filters.push_back(std::move(filter));
  }

  FilterStep Step(const OrderedJson& json) const {
    CheckObject("filter_list", json, {kStepKeys});
    FilterStep step;
    const std::string function = json.value("function", "");
    if (function == "regex") {
      step.kind = FilterStep::kRegex;
      step.pattern = json.value("regex_pattern", R"(#### (\-?[0-9\.\,]+))");
      step.group_select = json.value("group_select", std::int64_t{0});
      step.fallback = json.value("fallback", step.fallback);
      CheckPattern("filter_list", step.pattern);
      return step;
    }
    if (function == "remove_whitespace") {
      step.kind = FilterStep::kRemoveWhitespace;
    } else if (function == "lowercase") {
      step.kind = FilterStep::kLowercase;
    } else if (function != "take_first") {
      keys_.Refuse("filter_list", fmt::format("the filter '{}' is not supported", function));
    }
    if (json.size() > 1) keys_.Refuse("filter_list", fmt::format("{} has no settings", function));
    return step;
  }

  void ReadMetrics() {
    const OrderedJson* metrics = keys_.Find("metric_list");
    if (metrics == nullptr && !task_.checks_instructions) {
      task_.metrics = UsualMetrics(task_.kind);
      return;
    }
    if (metrics == nullptr || !metrics->is_array() || metrics->empty()) {
      keys_.Refuse("metric_list", "expected a list with 'metric: NAME' for each metric");
    }
    for (const OrderedJson& json : *metrics) ReadMetric(json);
  }

  void ReadMetric(const OrderedJson& json) {
    if (!json.is_object() || !json.contains("metric")) {
      keys_.Refuse("metric_list", "expected 'metric: NAME'");
    }
    if (!json["metric"].is_string()) {
      keys_.Refuse("metric_list",
                   fmt::format("metric: expected a name, found {}; a function of Python "
                               "is not run",
                               FormatJson(json["metric"])));
    }
    TaskMetric metric;
    metric.name = json["metric"].get<std::string>();
    const KnownMetric* known = FindMetric(metric.name);
    if (known == nullptr) {
      keys_.Refuse("metric_list", fmt::format("the metric '{}' is not supported", metric.name));
    }
    if (known->kind != task_.kind || known->of_instructions != task_.checks_instructions) {
      keys_.Refuse("metric_list", fmt::format("{} is no metric of this output_type", metric.name));
    }
    for (const TaskMetric& other : task_.metrics) {
      if (other.name == metric.name) {
        keys_.Refuse("metric_list", fmt::format("{} is given twice", metric.name));
      }
    }
    const bool matches = metric.name == "exact_match";
    CheckObject("metric_list", json, {kMetricKeys, matches ? kMatchKeys : kMetricKeys});
    metric.higher_is_better = known->higher_is_better;
    CheckAggregation(json, *known, metric);
    metric.regexes_to_ignore = json.value("regexes_to_ignore", std::vector<std::string>());
    for (const std::string& pattern : metric.regexes_to_ignore) {
      CheckPattern("metric_list", pattern);
    }
    metric.ignore_case = json.value("ignore_case", false);
    metric.ignore_punctuation = json.value("ignore_punctuation", false);
    metric.ignore_numbers = json.value("ignore_numbers", false);
    task_.metrics.push_back(std::move(metric));
  }

  // The definition may say how records are put together, but not otherwise than it is done.
  void CheckAggregation(const OrderedJson& json, const KnownMetric& known,
                        const TaskMetric& metric) const {
    if (const auto found = json.find("aggregation"); found != json.end()) {
      std::string given = FunctionOf(*found);
      given = given.substr(given.rfind('.') + 1);
      if (given.empty())
        given = found->is_string() ? found->get<std::string>() : FormatJson(*found);
      if (given != known.aggregation) {
        keys_.Refuse("metric_list",
                     fmt::format("aggregation: {} is put together by '{}', found '{}'", metric.name,
                                 known.aggregation, given));
      }
    }
    if (json.value("higher_is_better", metric.higher_is_better) != metric.higher_is_better) {
      keys_.Refuse("metric_list", fmt::format("higher_is_better: of {} it is {}", metric.name,
                                              metric.higher_is_better));
    }
  }

  // Refuses a value that is no object, and a key of it that is none of these.
  void CheckObject(std::string_view key, const OrderedJson& json,
                   std::initializer_list<std::string_view> known) const {
    if (!json.is_object()) keys_.Refuse(key, "expected 'key: value'");
    for (const auto& item : json.items()) {
      const bool holds = std::ranges::any_of(
          known, [&](std::string_view names) { return HoldsName(names, item.key()); });
      if (!holds) keys_.Refuse(key, fmt::format("the key '{}' is not supported", item.key()));
    }
  }

  // An empty text is matched to have a malformed pattern refused.
  void CheckPattern(std::string_view key, const std::string& pattern) const {
    FindAll(pattern, "", fmt::format("{}: {}", keys_.where(), key));
  }

  const DefinitionKeys& keys_;
  TaskFile& task_;
};

}  // namespace

std::vector<TaskMetric> UsualMetrics(TaskKind kind) {
  std::vector<TaskMetric> metrics;
  for (const KnownMetric& known : kMetrics) {
    if (known.kind != kind || known.of_instructions || known.name == "f1") continue;
    TaskMetric& metric = metrics.emplace_back();
    metric.name = known.name;
    metric.higher_is_better = known.higher_is_better;
  }
  return metrics;
}

void ReadJudging(const DefinitionKeys& keys, TaskFile& task) { JudgingReader(keys, task).Run(); }

}  // namespace qlora
