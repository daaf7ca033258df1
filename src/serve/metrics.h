// What a server counts, as the text that Prometheus reads (format 0.0.4).
#ifndef QLORA_SERVE_METRICS_H_
#define QLORA_SERVE_METRICS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace qlora {

// The values of a metric's labels, in the order of their names.
using LabelValues = std::vector<std::string>;

class Metrics {
 public:
  Metrics();

  // Labels come from models and routes that exist, never from what a client sends. Errors: Runtime,
  // a bug of the caller, for a metric that there is not.
  void Count(std::string_view name, const LabelValues& labels = {}, double by = 1);
  void Set(std::string_view name, double value);
  void Observe(std::string_view name, double value);

  // The body of /metrics.
  std::string Text() const;

 private:
  enum class Kind { kCounter, kGauge, kHistogram };
  struct Histogram {
    std::vector<std::int64_t> counts = {};  // of each bound, not summed
    std::int64_t total = 0;
    double sum = 0;
  };
  struct Metric {
    Kind kind;
    std::string help;
    std::vector<std::string> labels = {};
    std::vector<double> bounds = {};
    std::map<LabelValues, double> values = {};
    Histogram histogram = {};
  };

  Metric& Find(std::string_view name, Kind kind);

  mutable std::mutex mutex_;
  std::map<std::string, Metric, std::less<>> metrics_;
  double start_;  // seconds since 1970
};

}  // namespace qlora

#endif  // QLORA_SERVE_METRICS_H_
