// The numbers that the objective of a run reports beside its loss.
#ifndef QLORA_METRICS_H_
#define QLORA_METRICS_H_

#include <string>
#include <string_view>
#include <vector>

namespace qlora {

struct MetricValue {
  std::string name;  // "token_accuracy"
  double value = 0;
};

// Returns NaN where there is no such metric.
double ValueOf(const std::vector<MetricValue>& metrics, std::string_view name);

}  // namespace qlora

#endif  // QLORA_METRICS_H_
