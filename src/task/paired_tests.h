// How sure a figure of a task is, and a difference of two models on the same records.
#ifndef QLORA_TASK_PAIRED_TESTS_H_
#define QLORA_TASK_PAIRED_TESTS_H_

#include <cstdint>
#include <span>
#include <utility>

namespace qlora {

double Mean(std::span<const double> values);
// Of the ratio of the sums of both over n records. Where all denominators are 1, it is the sample
// deviation of the numerators over the root of n. 0 for a single record.
double StandardError(std::span<const double> numerators, std::span<const double> denominators);

// Two-sided: the probability that the sums of two models are at least as far apart, if the
// difference on each record might as well have the other sign. Of values that are 0 or 1 this is
// the exact test of McNemar. values: whole numbers of each record. Exact but for 1e-21; of sums
// that are further apart than 10 standard deviations, the bound of Hoeffding, which is smaller.
double ExactSignFlips(std::span<const double> a, std::span<const double> b);

// A figure of two models as sums over records: the sum of |the sum of a part| over all parts, over
// the sum of the denominators. A mean has one part, and denominators of 1.
struct PairedSums {
  std::span<const double> numerators_a;  // (records, parts)
  std::span<const double> numerators_b;  // (records, parts)
  std::span<const double> denominators;  // (records)
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
