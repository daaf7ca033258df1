// A file that has its name is whole after a power failure, too: what is in it was synced before.
#include <gtest/gtest.h>

#include "base/file.h"
#include "recorded_syncs.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

struct Way {
  OpenMode mode;
  bool no_nameless_files;
};

class FileSyncTest : public testing::TestWithParam<Way> {
 protected:
  TemporaryFolder folder_;
};

TEST_P(FileSyncTest, ContentThenNameThenFolder) {
  const fs::path path = folder_ / "a.txt";
  if (GetParam().mode == OpenMode::kReplace) WriteTextFile(path, "old");
  RecordedSyncs syncs;
  syncs.no_nameless_files = GetParam().no_nameless_files;
  AtomicFile file(path, GetParam().mode);
  file.Reserve(1 << 16);  // more than is written: the size is cut
  file.Write("begin, ");
  file.Write(std::string(1 << 21, 'x'));  // beyond the buffer
  file.WriteAt(0, std::as_bytes(std::span("BEGIN", 5)));
  file.Write(", end");
  EXPECT_EQ(syncs.named(), Names());
  file.Commit();
  ASSERT_FALSE(syncs.named().empty());
  EXPECT_EQ(syncs.named().back(), path.string());
  EXPECT_EQ(syncs.unsynced(), Names());
  EXPECT_EQ(syncs.UnsyncedNames(), Names());
  EXPECT_EQ(folder_.files(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Ways, FileSyncTest,
                         testing::Values(Way{OpenMode::kCreate, false},
                                         Way{OpenMode::kReplace, false},
                                         Way{OpenMode::kCreate, true},
                                         Way{OpenMode::kReplace, true}));

TEST(TreeSyncTest, ATreeIsSyncedWhole) {
  const TemporaryFolder folder;
  folder.Write("made/a.txt", "a");
  folder.Write("made/deep/b.txt", "b");
  RecordedSyncs syncs;
  SyncTree(folder / "made");
  fs::rename(folder / "made", folder / "finished");
  EXPECT_EQ(syncs.named(), Names{(folder / "finished").string()});
  EXPECT_EQ(syncs.unsynced(), Names());
  EXPECT_EQ(syncs.UnsyncedNames(), Names{(folder / "finished").string()});
  SyncFolder(folder.path());
  EXPECT_EQ(syncs.UnsyncedNames(), Names());
}

// The notes themselves.
TEST(TreeSyncTest, WhatIsNotSyncedIsFound) {
  const TemporaryFolder folder;
  folder.Write("made/a.txt", "a");
  RecordedSyncs syncs;
  SyncTree(folder / "made");
  folder.Write("made/a.txt", "later");
  fs::rename(folder / "made", folder / "finished");
  EXPECT_EQ(syncs.unsynced(), Names{(folder / "finished" / "a.txt").string()});
}

}  // namespace
}  // namespace qlora
