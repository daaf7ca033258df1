// Who computes what, and in which order.
#include "dist/rank_place.h"

#include <gtest/gtest.h>

#include <numeric>

namespace qlora {
namespace {

TEST(RankPlace, StagesOfAReplicaAreNeighbours) {
  const RankPlace place{.rank = 5, .stages = 2, .split = {8, 8, 4}};
  EXPECT_EQ(place.ranks(), 8);
  EXPECT_EQ(place.replica(), 2);
  EXPECT_EQ(place.stage(), 1);
  EXPECT_TRUE(place.is_last_stage());
  EXPECT_EQ(place.RankOf(2, 0), 4);
}

// Both kinds of passes are in the order of micro-batches, a backward pass follows its forward pass,
// and no stage holds more micro-batches than its place says.
TEST(RankPlace, SchedulesKeepTheOrderOfMicroBatches) {
  for (int stages = 1; stages <= 5; ++stages) {
    for (std::int64_t count = 0; count <= 9; ++count) {
      for (int stage = 0; stage < stages; ++stage) {
        const RankPlace place{.rank = stage, .stages = stages, .split = {count, 8, 1}};
        std::int64_t forward = 0;
        std::int64_t backward = 0;
        for (const StageOp& op : StageOpsOf(stage, stages, count)) {
          EXPECT_EQ(op.micro_batch, op.backward ? backward++ : forward++);
          EXPECT_LE(backward, forward);
          EXPECT_LE(forward - backward, count == 0 ? 1 : place.in_flight());
        }
        EXPECT_EQ(forward, count);
        EXPECT_EQ(backward, count);
      }
    }
  }
  const std::vector<StageOp> one = {{false, 0}, {true, 0}, {false, 1}, {true, 1}};
  EXPECT_EQ(StageOpsOf(0, 1, 2), one);
}

TEST(RankPlace, StagesHaveEqualShares) {
  const std::vector<IndexRange> even = {{0, 2}, {2, 4}, {4, 6}};
  EXPECT_EQ(CutIntoStages({1, 1, 1, 1, 1, 1}, 0, 3), even);
  // A head as large as two layers takes their place in the last stage.
  const std::vector<IndexRange> head = {{0, 4}, {4, 6}};
  EXPECT_EQ(CutIntoStages({1, 1, 1, 1, 1, 1}, 2, 2), head);
  for (int stages = 1; stages <= 7; ++stages) {
    const std::vector<IndexRange> found = CutIntoStages(std::vector<double>(7, 1.0), 50, stages);
    ASSERT_EQ(std::ssize(found), stages);
    EXPECT_EQ(found.front().begin, 0);
    EXPECT_EQ(found.back().end, 7);
    for (const IndexRange& range : found) EXPECT_GT(range.size(), 0);
  }
}

}  // namespace
}  // namespace qlora
