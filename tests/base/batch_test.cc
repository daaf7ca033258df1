#include "base/batch.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(BatchTest, ShiftsLabelsWithinEachSequence) {
  const std::vector<Sample> samples = {
      {.ids = {5, 6, 7}, .labels = {5, 6, 7}},
      {.ids = {8}, .labels = {8}},
      {.ids = {9, 10, 11}, .labels = {kIgnoreLabel, kIgnoreLabel, 11}},
  };
  const Batch batch = MakeBatch(samples);
  EXPECT_EQ(batch.ids, (Ids{5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(batch.targets, (Ids{6, 7, -100, -100, -100, 11, -100}));
  EXPECT_EQ(batch.positions, (Ids{0, 1, 2, 0, 0, 1, 2}));
  EXPECT_EQ(batch.sequence_begin, (std::vector<std::int64_t>{0, 3, 4, 7}));
  EXPECT_EQ(batch.rows(), 7);
  EXPECT_EQ(batch.sequences(), 3);
  EXPECT_EQ(batch.supervised(), 3);
  EXPECT_EQ(CountSupervised(samples[0]), 2);
  EXPECT_EQ(CountSupervised(samples[1]), 0);

  const std::vector<const Sample*> pointers = {&samples[2], &samples[0]};
  EXPECT_EQ(MakeBatch(pointers).ids, (Ids{9, 10, 11, 5, 6, 7}));
}

TEST(BatchTest, NoSamplesMakeNoRows) {
  const Batch batch = MakeBatch(std::span<const Sample>());
  EXPECT_EQ(batch.rows(), 0);
  EXPECT_EQ(batch.sequences(), 0);
}

}  // namespace
}  // namespace qlora
