#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/memory_info.h"
#include "base/text.h"

namespace qlora {
namespace {

const std::vector<double> kSeconds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                      1,     2.5,  5,     10,   30,  60,   300};
const std::vector<double> kRows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};

std::string Escaped(std::string text) {
  text = ReplaceAll(std::move(text), "\\", "\\\\");
  text = ReplaceAll(std::move(text), "\n", "\\n");
  return ReplaceAll(std::move(text), "\"", "\\\"");
}

std::string LabelsText(const std::vector<std::string>& names, const LabelValues& values) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += fmt::format("{}{}=\"{}\"", i == 0 ? "{" : ",", names[i], Escaped(values[i]));
  }
  return names.empty() ? text : text + "}";
}

// Counts stay whole numbers, however large.
std::string NumberText(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15 ? fmt::format("{:.0f}", value)
                                                              : fmt::format("{}", value);
}

}  // namespace

Metrics::Metrics()
    : start_(std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
                 .count()) {
  const auto counter = [this](std::string name, std::string help, std::vector<std::string> labels) {
    Metric metric{.kind = Kind::kCounter, .help = std::move(help), .labels = std::move(labels)};
    if (metric.labels.empty()) metric.values[{}] = 0;
    metrics_.emplace(std::move(name), std::move(metric));
  };
  const auto gauge = [this](std::string name, std::string help) {
    metrics_.emplace(std::move(name),
                     Metric{.kind = Kind::kGauge, .help = std::move(help), .values = {{{}, 0}}});
  };
  const auto histogram = [this](std::string name, std::string help, std::vector<double> bounds) {
    Metric metric{.kind = Kind::kHistogram, .help = std::move(help), .bounds = std::move(bounds)};
    metric.histogram.counts.resize(metric.bounds.size());
    metrics_.emplace(std::move(name), std::move(metric));
  };
  counter("qlora_requests_total", "Requests that were answered.", {"model", "route", "status"});
  counter("qlora_requests_cancelled_total",
          "Answers and decisions that were ended before their end: their client left, or "
          "the rest of the request was refused.",
          {});
  counter("qlora_prompt_tokens_total", "Tokens of prompts.", {"model"});
  counter("qlora_prompt_tokens_cached_total", "Tokens of prompts that were not computed anew.",
          {"model"});
  counter("qlora_generation_tokens_total", "Tokens that were written.", {"model"});
  gauge("qlora_requests_running", "Answers that are being written, and decisions.");
  gauge("qlora_requests_waiting", "Answers that wait for room.");
  gauge("qlora_kv_pages_used", "Slots for keys and values in use.");
  gauge("qlora_kv_pages_total", "Slots for keys and values.");
  histogram("qlora_time_to_first_token_seconds", "From a request to its first token.", kSeconds);
  histogram("qlora_inter_token_seconds", "From a token to the next one.", kSeconds);
  histogram("qlora_request_seconds", "From a request to the end of its answer.", kSeconds);
  histogram("qlora_step_seconds", "Passes of one step.", kSeconds);
  histogram("qlora_step_rows", "Tokens that a step chose.", kRows);
}

Metrics::Metric& Metrics::Find(std::string_view name, Kind kind) {
  const auto at = metrics_.find(name);
  if (at == metrics_.end() || at->second.kind != kind) ThrowRuntime("no metric '{}'", name);
  return at->second;
}

void Metrics::Count(std::string_view name, const LabelValues& labels, double by) {
  const std::lock_guard lock(mutex_);
  Metric& metric = Find(name, Kind::kCounter);
  if (labels.size() != metric.labels.size()) ThrowRuntime("metric '{}' has other labels", name);
  metric.values[labels] += by;
}

void Metrics::Set(std::string_view name, double value) {
  const std::lock_guard lock(mutex_);
  Find(name, Kind::kGauge).values[{}] = value;
}

void Metrics::Observe(std::string_view name, double value) {
  const std::lock_guard lock(mutex_);
  Metric& metric = Find(name, Kind::kHistogram);
  const auto bound = std::ranges::lower_bound(metric.bounds, value);
  Histogram& histogram = metric.histogram;
  if (bound != metric.bounds.end()) ++histogram.counts[bound - metric.bounds.begin()];
  ++histogram.total;
  histogram.sum += value;
}

std::string Metrics::Text() const {
  constexpr const char* kTypes[] = {"counter", "gauge", "histogram"};
  std::string text;
  const auto head = [&text](std::string_view name, std::string_view help, std::string_view type) {
    text += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  };
  const std::lock_guard lock(mutex_);
  for (const auto& [name, metric] : metrics_) {
    head(name, metric.help, kTypes[static_cast<int>(metric.kind)]);
    for (const auto& [labels, value] : metric.values) {
      text += fmt::format("{}{} {}\n", name, LabelsText(metric.labels, labels), NumberText(value));
    }
    if (metric.kind != Kind::kHistogram) continue;
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < metric.bounds.size(); ++i) {
      sum += metric.histogram.counts[i];
      text += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, metric.bounds[i], sum);
    }
    text += fmt::format("{}_bucket{{le=\"+Inf\"}} {}\n{}_sum {}\n{}_count {}\n", name,
                        metric.histogram.total, name, metric.histogram.sum, name,
                        metric.histogram.total);
  }
  head("process_resident_memory_bytes", "Memory that this process holds.", "gauge");
  text += fmt::format("process_resident_memory_bytes {}\n", ResidentBytes());
  head("process_start_time_seconds", "When the server began, in seconds since 1970.", "gauge");
  text += fmt::format("process_start_time_seconds {:.3f}\n", start_);
  return text;
}

}  // namespace qlora
