#include "task/paired_tests.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace qlora {
namespace {

TEST(PairedTestsTest, GivesTheStandardErrorOfAMean) {
  const std::vector<double> values = {1, 0, 1, 1};
  EXPECT_DOUBLE_EQ(Mean(values), 0.75);
  EXPECT_DOUBLE_EQ(StandardError(values), 0.25);
}

// 2 * (C(8,0) + C(8,1)) / 2^8 = 18 / 256.
TEST(PairedTestsTest, CountsOnlyRecordsOnWhichModelsDiffer) {
  const std::vector<double> a = {1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0};
  const std::vector<double> b = {0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0};
  EXPECT_NEAR(ExactMcNemar(a, b), 18.0 / 256.0, 1e-15);
  EXPECT_EQ(ExactMcNemar(a, a), 1);
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
