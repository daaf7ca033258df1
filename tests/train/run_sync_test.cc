// A checkpoint that has its name is whole after a power failure, too.
#include <algorithm>

#include "recorded_syncs.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

using RunSyncTest = TinyRunTest;
using Names = std::vector<std::string>;

TEST_F(RunSyncTest, CheckpointsAndAdaptersAreOnTheDiskBeforeTheyHaveTheirNames) {
  TrainOptions options = Options("out");
  options.max_steps = 4;
  options.save_steps = 2;
  options.save_total_limit = 0;
  RecordedSyncs syncs;
  Run(options);
  const auto was_named = [&](const fs::path& path) {
    const Names& named = syncs.named();
    return std::find(named.begin(), named.end(), path.string()) != named.end();
  };
  EXPECT_TRUE(was_named(root_ / "out" / "checkpoint-2"));
  EXPECT_TRUE(was_named(root_ / "out" / "checkpoint-4"));
  EXPECT_TRUE(was_named(root_ / "out" / "adapter_model.safetensors"));
  EXPECT_EQ(syncs.unsynced(), Names());
  EXPECT_EQ(syncs.UnsyncedNames(), Names());
}

}  // namespace
}  // namespace qlora
