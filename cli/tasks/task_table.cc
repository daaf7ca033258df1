#include "tasks/task_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace qlora {
namespace {

std::string Figure(const TaskFigure& figure) {
  return figure.is_mean ? fmt::format("{:.4f} +-{:.4f}", figure.value, figure.standard_error)
                        : fmt::format("{:.4f}", figure.value);
}

// "  ---o-|  ": the interval, its difference and 0, from -extent to extent.
std::string Drawn(const TaskComparison& row, double extent) {
  constexpr int kHalf = 10;
  std::string line(2 * kHalf + 1, ' ');
  if (!std::isfinite(row.low + row.high + row.difference)) return line;
  const auto column = [&](double value) {
    const double share = extent > 0 ? std::clamp(value / extent, -1.0, 1.0) : 0;
    return static_cast<std::size_t>(kHalf + std::lround(share * kHalf));
  };
  for (std::size_t i = column(row.low); i <= column(row.high); ++i) line[i] = '-';
  line[kHalf] = '|';
  line[column(row.difference)] = 'o';
  return line;
}

}  // namespace

OrderedJson FiguresJson(const TaskResult& result) {
  OrderedJson json = {{"n", result.records}};
  for (const TaskFigure& figure : result.figures) {
    json[figure.name] = figure.value;
    if (!figure.is_mean) continue;
    const std::size_t comma = figure.name.find(',');
    const std::string filter = comma == std::string::npos ? "" : figure.name.substr(comma);
    json[figure.name.substr(0, comma) + "_stderr" + filter] = figure.standard_error;
  }
  return json;
}

OrderedJson ComparisonJson(const TaskComparison& row) {
  return {{"figure", row.name},
          {"value", row.first},
          {"with", row.second},
          {"difference", row.difference},
          {"low", row.low},
          {"high", row.high},
          {"p", row.p},
          {"test", row.test},
          {"higher_is_better", row.higher_is_better}};
}

std::string TaskTable(const std::vector<TaskResult>& results) {
  std::string table = fmt::format("{:<20}  {:<28}  {:>6}  {:>7}  {}\n", "task", "figure", "shots",
                                  "records", "value");
  for (const TaskResult& result : results) {
    for (const TaskFigure& figure : result.figures) {
      table += fmt::format("{:<20}  {:<28}  {:>6}  {:>7}  {}\n", result.task, figure.name,
                           result.num_fewshot, result.records, Figure(figure));
    }
  }
  return table;
}

std::string TaskComparisonTable(const std::vector<ModelTasks>& models) {
  const ModelTasks& last = models.back();
  std::string table;
  for (std::size_t m = 0; m + 1 < models.size(); ++m) {
    table += fmt::format("{} beside {}\n", models[m].name, last.name);
    for (std::size_t t = 0; t < last.results.size(); ++t) {
      // The difference that a reader asks for is what the model adds to the last.
      const std::vector<TaskComparison> rows = CompareTasks(last.results[t], models[m].results[t]);
      double extent = 0;
      for (const TaskComparison& row : rows) {
        extent = std::max({extent, std::abs(row.low), std::abs(row.high)});
      }
      for (const TaskComparison& row : rows) {
        table += fmt::format(
            "  {:<20}  {:<24}  {:>9.4f}  {:>9.4f}  {:>+8.4f} ({:+.4f}, {:+.4f})  {}  p {:.4f} {}\n",
            last.results[t].task, row.name, row.second, row.first, row.difference, row.low,
            row.high, Drawn(row, extent), row.p, row.test);
      }
    }
  }
  return table;
}

}  // namespace qlora
