#include "task/paired_tests.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace qlora {
namespace {

TEST(PairedTestsTest, GivesTheStandardErrorOfAMean) {
  const std::vector<double> values = {1, 0, 1, 1};
  EXPECT_DOUBLE_EQ(Mean(values), 0.75);
  EXPECT_DOUBLE_EQ(StandardError(values, std::vector<double>(4, 1.0)), 0.25);
  // Records of twice the weight that count twice as much are as sure.
  EXPECT_DOUBLE_EQ(StandardError(std::vector<double>{2, 0, 2, 2}, std::vector<double>(4, 2.0)),
                   0.25);
}

// 2 * (C(8,0) + C(8,1)) / 2^8 = 18 / 256.
TEST(PairedTestsTest, CountsOnlyRecordsOnWhichModelsDiffer) {
  const std::vector<double> a = {1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0};
  const std::vector<double> b = {0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0};
  EXPECT_NEAR(ExactSignFlips(a, b), 18.0 / 256.0, 1e-15);
  EXPECT_EQ(ExactSignFlips(a, a), 1);
}

// Differences of 3, 1, -1 and 2, whose sum is 5.
TEST(PairedTestsTest, CountsEachWayInWhichSignsMightHaveFallen) {
  const std::vector<double> a = {0, 1, 3, 0, 2};
  const std::vector<double> b = {3, 2, 2, 2, 2};
  const double steps[] = {3, 1, 1, 2};
  int as_far = 0;
  for (int signs = 0; signs < 16; ++signs) {
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += (signs >> i & 1) != 0 ? steps[i] : -steps[i];
    as_far += std::abs(sum) >= 5 ? 1 : 0;
  }
  EXPECT_DOUBLE_EQ(ExactSignFlips(a, b), as_far / 16.0);
}

// Of n coins, the probability of at least k heads or at least k tails.
double TwoTails(int n, int k) {
  double sum = 0;
  for (int i = k; i <= n; ++i) {
    sum += std::exp(std::lgamma(n + 1) - std::lgamma(i + 1) - std::lgamma(n - i + 1) -
                    n * std::log(2.0));
  }
  return 2 * sum;
}

// Sums so far out that nothing reaches them are left out; what counts is as it was.
TEST(PairedTestsTest, ManyRecordsHaveTheirBinomialTails) {
  const int n = 20000;
  std::vector<double> a(n);
  for (const int better : {10001, 10100, 10300, 10600}) {
    std::vector<double> b(n, -1.0);
    std::fill(b.begin(), b.begin() + better, 1.0);
    const double expected = TwoTails(n, better);
    EXPECT_NEAR(ExactSignFlips(a, b), expected, 1e-9 * expected + 1e-20) << better;
    // Steps of any length are the same sums in another unit.
    for (double& value : b) value *= 3;
    EXPECT_NEAR(ExactSignFlips(a, b), expected, 1e-9 * expected + 1e-20) << better;
  }
  const double beyond = ExactSignFlips(std::vector<double>(200), std::vector<double>(200, 1.0));
  EXPECT_GE(beyond, TwoTails(200, 200));
  EXPECT_LT(beyond, 1e-21);
}

TEST(PairedTestsTest, DrawsTheSameRecordsForBoth) {
  const std::vector<double> a = {3, 1, 4, 1, 5, 9, 2, 6};
  std::vector<double> b;
  for (const double value : a) b.push_back(value + 0.5);
  const std::vector<double> ones(a.size(), 1.0);
  const PairedDifference shifted = PairedBootstrap({a, b, ones});
  EXPECT_NEAR(shifted.difference, 0.5, 1e-15);
  EXPECT_NEAR(shifted.low, 0.5, 1e-15);
  EXPECT_NEAR(shifted.high, 0.5, 1e-15);
  EXPECT_LT(shifted.p, 0.001);
  EXPECT_EQ(PairedBootstrap({a, a, ones}).p, 1);
}

// The sum of |the sum of a part| over two parts: (|1 - 3| + |2 + 1|) / 2 and (|1 + 1| + |0 + 1|)
// / 2.
TEST(PairedTestsTest, TakesPartsTogetherByTheirSize) {
  const std::vector<double> a = {1, 2, -3, 1};
  const std::vector<double> b = {1, 0, 1, 1};
  const PairedDifference parts = PairedBootstrap({a, b, std::vector<double>(2, 1.0)});
  EXPECT_DOUBLE_EQ(parts.difference, 1.5 - 2.5);
  EXPECT_LE(parts.low, parts.difference);
  EXPECT_GE(parts.high, parts.difference);
}

TEST(PairedTestsTest, SaysNothingOfWhatIsNoNumber) {
  const std::vector<double> a = {1, 2};
  const std::vector<double> b = {1, std::nan("")};
  const PairedDifference none = PairedBootstrap({a, b, std::vector<double>(2, 1.0)});
  EXPECT_TRUE(std::isnan(none.difference));
  EXPECT_TRUE(std::isnan(none.low) && std::isnan(none.high));
  EXPECT_TRUE(std::isnan(none.p));
}

}  // namespace
}  // namespace qlora
