#include "decision/decision_loss.h"

#include <numeric>

#include "base/check.h"

namespace qlora {
namespace {

// gradient += weight p (v - p.v): the derivative of p.v for a fixed v, times weight.
void AddOfExpectation(const std::vector<double>& p, const std::vector<double>& v, double weight,
                      std::vector<double>& gradient) {
  const double mean = std::inner_product(p.begin(), p.end(), v.begin(), 0.0);
  for (std::size_t k = 0; k < p.size(); ++k) gradient[k] += weight * p[k] * (v[k] - mean);
}

}  // namespace

void CheckLossOptions(const DecisionLossOptions& options) {
  const double e = options.label_smoothing;
  if (!(e >= 0 && e < 1)) {
    ThrowInvalidInput("label_smoothing: expected a number in [0, 1), found {}", e);
  }
  const auto check = [](const char* name, double weight) {
    if (weight >= 0 && std::isfinite(weight)) return;
    ThrowInvalidInput("{}: expected a number from 0 on, found {}", name, weight);
  };
  check("brier_weight", options.brier_weight);
  check("ordinal_weight", options.ordinal_weight);
}

std::vector<double> DecisionLossGradient(std::span<const double> z, std::span<const double> t,
                                         QuestionType type, const DecisionLossOptions& options) {
  const std::size_t n = z.size();
  const std::vector<double> p = Softmax(z);
  std::vector<double> gradient(n);
  std::vector<double> difference(n);  // d
  std::vector<double> distance(n);    // c
  for (std::size_t j = 0; j < n; ++j) {
    const double e = options.label_smoothing;
    gradient[j] = p[j] - ((1 - e) * t[j] + e / static_cast<double>(n));
    difference[j] = p[j] - t[j];
    for (std::size_t k = 0; k < n; ++k) {
      distance[j] += t[k] * std::abs(static_cast<double>(j) - static_cast<double>(k));
    }
  }
  AddOfExpectation(p, difference, 2 * options.brier_weight, gradient);
  if (type == QuestionType::kScore) {
    AddOfExpectation(p, distance, options.ordinal_weight / static_cast<double>(n - 1), gradient);
  }
  return gradient;
}

}  // namespace qlora
