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

double StandardError(std::span<const double> numerators, std::span<const double> denominators) {
  if (numerators.size() < 2) return 0;
  const double below = Mean(denominators);
  const double ratio = Mean(numerators) / below;
  double sum = 0;
  for (std::size_t i = 0; i < numerators.size(); ++i) {
    const double rest = numerators[i] - ratio * denominators[i];
    sum += rest * rest;
  }
  const auto n = static_cast<double>(numerators.size());
  return std::sqrt(sum / (n - 1) / n) / below;
}

double ExactSignFlips(std::span<const double> a, std::span<const double> b) {
  std::vector<std::int64_t> steps;
  std::int64_t difference = 0;
  std::int64_t reach = 0;
  std::int64_t longest = 0;
  double squares = 0;  // the variance of the sum
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto step = static_cast<std::int64_t>(b[i] - a[i]);
    if (step == 0) continue;
    steps.push_back(std::abs(step));
    difference += step;
    reach += steps.back();
    longest = std::max(longest, steps.back());
    squares += static_cast<double>(step) * static_cast<double>(step);
  }
  if (difference == 0) return 1;
  // Of n records, sums beyond some root of n have no weight (Hoeffding: below 1e-21), so that the
  // time grows with the power 3/2 of n, not with its square.
  constexpr double kDeviations = 10;
  const auto far = static_cast<std::int64_t>(std::ceil(kDeviations * std::sqrt(squares)));
  const std::int64_t width = std::min(reach, far);
  if (std::abs(difference) > width) {
    const auto distance = static_cast<double>(difference);
    return 2 * std::exp(-distance * distance / (2 * squares));
  }
  // The probability of each sum from -width to width after the steps so far, at sum + zero, between
  // zeros.
  const std::int64_t zero = width + longest;
  std::vector<double> now(static_cast<std::size_t>(2 * zero + 1));
  std::vector<double> next(now.size());
  now[zero] = 1;
  std::int64_t so_far = 0;
  for (const std::int64_t step : steps) {
    so_far = std::min(width, so_far + step);
    for (std::int64_t at = zero - so_far; at <= zero + so_far; ++at) {
      next[at] = (now[at - step] + now[at + step]) / 2;
    }
    now.swap(next);
  }
  double tails = 0;
  for (std::int64_t sum = std::abs(difference); sum <= width; ++sum) {
    tails += now[zero + sum] + now[zero - sum];
  }
  return std::min(1.0, tails);
}

PairedDifference PairedBootstrap(const PairedSums& sums, std::int64_t draws) {
  const std::int64_t n = std::ssize(sums.denominators);
  const std::int64_t parts = std::ssize(sums.numerators_a) / n;
  const RandomKey key = MakeKey(0, RandomPlace::kBootstrap);
  std::vector<double> a(static_cast<std::size_t>(parts));
  std::vector<double> b(static_cast<std::size_t>(parts));
  const auto difference = [&](const auto& pick) {
    std::ranges::fill(a, 0.0);
    std::ranges::fill(b, 0.0);
    double below = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t row = pick(i);
      for (std::int64_t part = 0; part < parts; ++part) {
        a[part] += sums.numerators_a[row * parts + part];
        b[part] += sums.numerators_b[row * parts + part];
      }
      below += sums.denominators[row];
    }
    double more = 0;
    for (std::int64_t part = 0; part < parts; ++part) more += std::abs(b[part]) - std::abs(a[part]);
    return more / below;
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
  std::ranges::sort(drawn);
  const auto share = [&](const auto& holds) {
    return static_cast<double>(std::ranges::count_if(drawn, holds)) / static_cast<double>(draws);
  };
  result.low = drawn[draws / 40];
  result.high = drawn[draws - 1 - draws / 40];
  const double side =
      std::min(share([](double x) { return x <= 0; }), share([](double x) { return x >= 0; }));
  result.p = std::clamp(2 * side, 1.0 / static_cast<double>(draws), 1.0);
  return result;
}

}  // namespace qlora
