#include "data/epoch_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "io/test_util.h"

namespace qlora {
namespace {

std::vector<std::uint32_t> Sorted(std::vector<std::uint32_t> values) {
  std::sort(values.begin(), values.end());
  return values;
}

TEST(EpochOrderTest, PermutationHoldsEveryElementOnce) {
  for (const std::int64_t n : {0, 1, 2, 3, 1000}) {
    const auto order = Permutation(n, MakeKey(5, RandomPlace::kTest));
    std::vector<std::uint32_t> all(n);
    std::iota(all.begin(), all.end(), 0U);
    EXPECT_EQ(Sorted(order), all);
  }
}

// All 24 orders of four elements, 24000 draws: chi-square with 23 degrees of freedom stays below
// 49.7 with probability 0.999; the seeds are fixed, so that the test is no lottery.
TEST(EpochOrderTest, PermutationIsUniform) {
  std::vector<int> count(256);
  for (std::uint64_t seed = 0; seed < 24000; ++seed) {
    const auto order = Permutation(4, MakeKey(seed, RandomPlace::kTest));
    ++count[order[0] * 64 + order[1] * 16 + order[2] * 4 + order[3]];
  }
  double chi_square = 0;
  int orders = 0;
  for (const int n : count) {
    if (n == 0) continue;
    ++orders;
    chi_square += (n - 1000.0) * (n - 1000.0) / 1000.0;
  }
  EXPECT_EQ(orders, 24);
  EXPECT_LT(chi_square, 49.7);
}

TEST(EpochOrderTest, EpochsDifferAndRepeat) {
  const EpochOrder order({{100, 1}, {50, 1}}, /*shuffle=*/true, 7);
  EXPECT_EQ(order.epoch_size(), 150);
  EXPECT_EQ(order.Epoch(3), order.Epoch(3));
  EXPECT_NE(order.Epoch(3), order.Epoch(4));
  EXPECT_NE(order.Epoch(3), EpochOrder({{100, 1}, {50, 1}}, true, 8).Epoch(3));
  EXPECT_EQ(Sorted(order.Epoch(3)), EpochOrder({{150, 1}}, false, 0).Epoch(0));
}

TEST(EpochOrderTest, WeightsVisitExactlyAsOftenAsTheySay) {
  const std::vector<OrderPart> parts = {{10, 2.5}, {4, 0.25}, {3, 1}};
  const EpochOrder shuffled(parts, true, 1);
  EXPECT_EQ(shuffled.epoch_size(), 25 + 1 + 3);
  std::vector<int> extra(10);
  for (std::int64_t epoch = 0; epoch < 40; ++epoch) {
    std::vector<int> visits(17);
    for (const std::uint32_t sample : shuffled.Epoch(epoch)) ++visits.at(sample);
    EXPECT_EQ(std::accumulate(visits.begin(), visits.begin() + 10, 0), 25);
    EXPECT_EQ(std::accumulate(visits.begin() + 10, visits.begin() + 14, 0), 1);
    EXPECT_EQ(std::accumulate(visits.begin() + 14, visits.end(), 0), 3);
    for (int i = 0; i < 10; ++i) {
      EXPECT_TRUE(visits[i] == 2 || visits[i] == 3);
      extra[i] += visits[i] - 2;
    }
  }
  EXPECT_EQ(extra, std::vector<int>(10, 20)) << "5 of 10 in each of 40 epochs, all equally often";

  const EpochOrder in_order(parts, false, 1);
  EXPECT_EQ(in_order.Epoch(0),
            (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0,  1,  2,  3, 4,
                                        5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 10, 14, 15, 16}));
  EXPECT_EQ(in_order.Epoch(0), in_order.Epoch(1));
}

// No sample of a thinned file comes again before all others have come, in epochs of any size.
TEST(EpochOrderTest, ThinnedFilesAreDrawnWithoutReplacementOverEpochs) {
  for (const double weight : {0.1, 0.3, 0.5, 0.7, 1.4}) {
    const EpochOrder order({{10, weight}}, true, 3);
    std::vector<int> visits(10);
    for (std::int64_t epoch = 0; epoch < 30; ++epoch) {
      for (const std::uint32_t sample : order.Epoch(epoch)) ++visits.at(sample);
      const auto [least, most] = std::minmax_element(visits.begin(), visits.end());
      EXPECT_LE(*most - *least, 1) << weight << " " << epoch;
    }
  }
  EXPECT_NE(Sorted(EpochOrder({{100, 0.5}}, true, 1).Epoch(0)),
            Sorted(EpochOrder({{100, 0.5}}, true, 2).Epoch(0)));
}

TEST(EpochOrderTest, RefusesWeightsThatSayNothing) {
  for (const double weight : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    ExpectRefused([&] { EpochOrder({{10, weight}}, true, 1); }, "weight of a data file");
  }
  ExpectRefused([] { EpochOrder({{10, 0.01}}, true, 1); }, "takes none of the 10 samples");
  ExpectRefused([] { EpochOrder({{10, 1}, {10, 0, "b.jsonl"}}, true, 1); }, "b.jsonl: the weight");
}

}  // namespace
}  // namespace qlora
