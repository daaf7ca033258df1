#include "objective/objective.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace qlora {

double ValueOf(const std::vector<MetricValue>& metrics, std::string_view name) {
  for (const MetricValue& metric : metrics) {
    if (metric.name == name) return metric.value;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

const Metric& MetricNamed(const Objective& objective, std::string_view name) {
  std::string names;
  for (const Metric& metric : objective.metrics()) {
    if (std::ranges::count(kBestMetrics, metric.name) == 0) continue;
    if (metric.name == name) return metric;
    names += (names.empty() ? "" : ", ") + std::string(metric.name);
  }
  ThrowInvalidInput("metric_for_best_model: expected one of {}, found '{}'", names, name);
}

std::vector<MetricValue> MetricsOf(const Objective& objective, std::span<const double> values,
                                   bool of_steps) {
  std::vector<MetricValue> metrics;
  for (std::int64_t i = 1; i < std::ssize(values); ++i) {
    const Metric& metric = objective.metrics()[i];
    const bool reported = of_steps ? metric.in_steps : metric.in_evals;
    if (reported) metrics.push_back({std::string(metric.name), values[i]});
  }
  return metrics;
}

}  // namespace qlora
