#include "terminal/decision_table.h"

#include <fmt/format.h>

#include "base/text.h"
#include "io/json.h"

namespace qlora {
namespace {

// The value of a metric of one column, or "" where the type has no such metric.
std::string Cell(const OrderedJson& metrics, const char* name) {
  const auto value = metrics.find(name);
  if (value == metrics.end()) return "";
  if (value->is_null()) return "-";
  return value->is_number_integer() ? std::to_string(value->get<std::int64_t>())
                                    : fmt::format("{:.4f}", value->get<double>());
}

// "0.42-0.75": where 95 % of the values lie when records are drawn again.
std::string Range(const OrderedJson& metrics, const char* name) {
  const auto intervals = metrics.find("intervals");
  if (intervals == metrics.end() || !intervals->contains(name)) return "";
  const OrderedJson& range = intervals->at(name);
  return fmt::format("{:.3f}-{:.3f}", range.at(0).get<double>(), range.at(1).get<double>());
}

template <typename CellOf>
std::string Row(const char* name, const OrderedJson& columns, const CellOf& cell) {
  std::string row = fmt::format("{:<28}", name);
  bool is_empty = true;
  for (const auto& [column, metrics] : columns.items()) {
    const std::string text = cell(metrics, column);
    is_empty = is_empty && text.empty();
    row += fmt::format("{:>14}", text);
  }
  return is_empty ? "" : std::string(TrimEnd(row)) + '\n';
}

}  // namespace

std::string DecisionTable(const DecisionResult& result) {
  const OrderedJson after = ParseOrderedJson(result.metrics, "metrics");
  const bool has_before = !result.metrics_before.empty();
  const OrderedJson before =
      has_before ? ParseOrderedJson(result.metrics_before, "metrics") : OrderedJson::object();
  std::string table = Row("", after, [](const OrderedJson&, const std::string& c) { return c; });
  const auto add = [&](const char* name, const OrderedJson& columns, const char* metric) {
    table += Row(name, columns,
                 [&](const OrderedJson& m, const std::string&) { return Cell(m, metric); });
  };
  add("questions", after, "n");
  for (const char* name : {"accuracy", "log_loss", "brier", "ece"}) {
    add(name, after, name);
    table += Row("  95 %", after,
                 [&](const OrderedJson& m, const std::string&) { return Range(m, name); });
    if (has_before) add("  before temperature", before, name);
  }
  for (const char* name : {"adaptive_ece", "mce"}) {
    add(name, after, name);
    if (has_before) add("  before temperature", before, name);
  }
  for (const char* name : {"auroc", "ece_true", "macro_f1", "mae", "quadratic_kappa", "flip",
                           "coverage_at_5_percent_error", "confident_errors"}) {
    add(name, after, name);
  }
  if (has_before) {
    table += Row("temperature", after, [&](const OrderedJson&, const std::string& type) {
      const auto found = result.temperatures.find(type);
      return found == result.temperatures.end() ? "" : fmt::format("{:.4f}", found->second);
    });
  }
  if (result.label_mass)
    table += fmt::format("{:<28}{:>14.4f}\n", "label_mass", *result.label_mass);
  return table;
}

OrderedJson DecisionJson(const DecisionResult& result) {
  OrderedJson json = {{"decision", ParseOrderedJson(result.metrics, "metrics")}};
  if (!result.metrics_before.empty()) {
    json["decision_before_temperature"] = ParseOrderedJson(result.metrics_before, "metrics");
  }
  json["temperature"] = result.temperatures;
  if (result.label_mass) json["label_mass"] = *result.label_mass;
  json["questions"] = result.questions;
  return json;
}

}  // namespace qlora
