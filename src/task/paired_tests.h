// How sure a figure of a task is, and a difference of two models on the same records.
#ifndef QLORA_TASK_PAIRED_TESTS_H_
#define QLORA_TASK_PAIRED_TESTS_H_

#include <cstdint>
#include <span>
#include <utility>

namespace qlora {

double Mean(std::span<const double> values);
// The sample deviation over the root of n; 0 for a single value.
double StandardError(std::span<const double> values);

// The exact test of McNemar, two-sided: the probability that of all records on which two models
// differ at least as many fall to one side, if each side is as likely. values: 0 or 1 of each
// record.
double ExactMcNemar(std::span<const double> a, std::span<const double> b);

// A figure of two models as sums over records: numerator over denominator. For a mean all
// denominators are 1.
struct PairedSums {
  std::span<const double> numerators_a;
  std::span<const double> numerators_b;
  std::span<const double> denominators;
};
struct PairedDifference {
  double difference = 0;  // of b to a
  double low = 0;         // of the middle 95 % of all draws
  double high = 0;
  double p = 1;  // two-sided: twice the smaller share of draws on one side of 0, at least 1/draws
};
// All are NaN where the difference is no number. The paired bootstrap: records are drawn with
// replacement, the same for both. Draws are those of a fixed seed.
PairedDifference PairedBootstrap(const PairedSums& sums, std::int64_t draws = 2000);

}  // namespace qlora

#endif  // QLORA_TASK_PAIRED_TESTS_H_
