#include "data/packing.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace qlora {
namespace {

TEST(PackingTest, KeepsEveryItemOnceWithinCapacityAndWindow) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 200; ++trial) {
    const std::int64_t capacity = 1 + static_cast<std::int64_t>(random() % 300);
    const std::int64_t window = 1 + static_cast<std::int64_t>(random() % 90);
    std::vector<std::int32_t> lengths(random() % 400);
    for (auto& length : lengths) {
      length = 1 + static_cast<std::int32_t>(random() % static_cast<unsigned>(capacity));
    }
    const Groups groups = PackBestFit(lengths, capacity, window);
    std::vector<int> seen(lengths.size());
    std::int64_t last_first = -1;
    for (std::int64_t g = 0; g < groups.size(); ++g) {
      std::int64_t tokens = 0;
      std::int64_t last = -1;
      for (const std::uint32_t item : groups[g]) {
        ++seen.at(item);
        tokens += lengths[item];
        EXPECT_GT(item, last);
        last = item;
        EXPECT_EQ(item / window, groups[g][0] / window);
      }
      EXPECT_LE(tokens, capacity);
      EXPECT_GT(groups[g][0], last_first);
      last_first = groups[g][0];
    }
    EXPECT_EQ(seen, std::vector<int>(lengths.size(), 1));
  }
}

// Best fit never opens a group while another has room: at most one group is at most half full.
TEST(PackingTest, FillsGroups) {
  std::mt19937 random(3);
  std::vector<std::int32_t> lengths(5000);
  for (auto& length : lengths) length = 1 + static_cast<std::int32_t>(random() % 700);
  const Groups groups = PackBestFit(lengths, 1024, 5000);
  const double tokens = std::accumulate(lengths.begin(), lengths.end(), 0.0);
  EXPECT_GT(tokens / (1024.0 * static_cast<double>(groups.size())), 0.98);
  int half_empty = 0;
  for (std::int64_t g = 0; g < groups.size(); ++g) {
    std::int64_t sum = 0;
    for (const std::uint32_t item : groups[g]) sum += lengths[item];
    half_empty += sum <= 512;
  }
  EXPECT_LE(half_empty, 1);
}

TEST(PackingTest, GroupsEvenly) {
  const Groups groups = GroupEvenly(7, 3);
  EXPECT_EQ(groups.begin, (std::vector<std::uint64_t>{0, 3, 6, 7}));
  EXPECT_EQ(groups.items, (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(GroupEvenly(6, 3).size(), 2);
  EXPECT_EQ(GroupEvenly(0, 3).size(), 0);
}

}  // namespace
}  // namespace qlora
