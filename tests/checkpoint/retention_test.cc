// Which checkpoints stay.
#include "checkpoint/retention.h"

#include <gtest/gtest.h>

#include <set>

#include "base/file.h"
#include "checkpoint/checkpoint_folders.h"
#include "io/test_util.h"

namespace qlora {
namespace {

using Steps = std::set<std::int64_t>;

// The steps of checkpoints 1 to 6 that stay.
Steps Kept(std::int64_t keep, std::int64_t newest, std::int64_t spared) {
  const TemporaryFolder folder;
  for (std::int64_t step = 1; step <= 6; ++step) {
    std::filesystem::create_directory(CheckpointDir(folder.path(), step));
    WriteTextFile(CheckpointDir(folder.path(), step) / kTrainerState, "{}");
  }
  RemoveOldCheckpoints(folder.path(), keep, newest, spared);
  Steps steps;
  for (const auto& dir : ListCheckpoints(folder.path())) steps.insert(*StepOfCheckpoint(dir));
  return steps;
}

// The best one counts, as in transformers: with a limit of one, the best and the newest stay.
TEST(Retention, TheBestAndTheNewestCount) {
  EXPECT_EQ(Kept(2, 6, -1), (Steps{5, 6}));
  EXPECT_EQ(Kept(2, 6, 1), (Steps{1, 6}));
  EXPECT_EQ(Kept(3, 6, 1), (Steps{1, 5, 6}));
  EXPECT_EQ(Kept(3, 6, 5), (Steps{4, 5, 6}));
  EXPECT_EQ(Kept(1, 6, 1), (Steps{1, 6}));
  EXPECT_EQ(Kept(1, 6, 6), Steps{6});
  EXPECT_EQ(Kept(2, 3, 1), (Steps{1, 3}));
  EXPECT_EQ(Kept(9, 6, 1), (Steps{1, 2, 3, 4, 5, 6}));
}

}  // namespace
}  // namespace qlora
