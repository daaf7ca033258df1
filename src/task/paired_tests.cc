#include "task/paired_tests.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace qlora {

double Mean(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double StandardError(std::span<const double> values) {
  if (values.size() < 2) return 0;
  const double mean = Mean(values);
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  const auto n = static_cast<double>(values.size());
  return std::sqrt(sum / (n - 1) / n);
}

double ExactMcNemar(std::span<const double> a, std::span<const double> b) {
  std::int64_t only_a = 0;
  std::int64_t only_b = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    only_a += a[i] > b[i] ? 1 : 0;
    only_b += b[i] > a[i] ? 1 : 0;
  }
  const std::int64_t n = only_a + only_b;
  const std::int64_t few = std::min(only_a, only_b);
  if (n == 0 || 2 * few == n) return 1;
  double sum = 0;
  double log_choose = -static_cast<double>(n) * std::log(2.0);  // log(C(n, k) / 2^n)
  for (std::int64_t k = 0; k <= few; ++k) {
    sum += std::exp(log_choose);
    log_choose += std::log(static_cast<double>(n - k) / static_cast<double>(k + 1));
  }
  return std::min(1.0, 2 * sum);
}

PairedDifference PairedBootstrap(const PairedSums& sums, std::int64_t draws) {
  const std::int64_t n = std::ssize(sums.denominators);
  const RandomKey key = MakeKey(0, RandomPlace::kBootstrap);
  const auto difference = [&](const auto& pick) {
    double a = 0;
    double b = 0;
    double below = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t row = pick(i);
      a += sums.numerators_a[row];
      b += sums.numerators_b[row];
      below += sums.denominators[row];
    }
    return (b - a) / below;
  };
  PairedDifference result;
  result.difference = difference([](std::int64_t i) { return i; });
  if (!std::isfinite(result.difference)) {
    result.low = result.high = result.p = std::numeric_limits<double>::quiet_NaN();
    return result;
  }
  std::vector<double> drawn;
  for (std::int64_t d = 0; d < draws; ++d) {
    drawn.push_back(difference(
        [&](std::int64_t i) { return static_cast<std::int64_t>(RandomBelow(key, d * n + i, n)); }));
  }
  std::sort(drawn.begin(), drawn.end());
  const auto share = [&](const auto& holds) {
    return static_cast<double>(std::count_if(drawn.begin(), drawn.end(), holds)) /
           static_cast<double>(draws);
  };
  result.low = drawn[draws / 40];
  result.high = drawn[draws - 1 - draws / 40];
  const double side =
      std::min(share([](double x) { return x <= 0; }), share([](double x) { return x >= 0; }));
  result.p = std::clamp(2 * side, 1.0 / static_cast<double>(draws), 1.0);
  return result;
}

}  // namespace qlora
