#include "base/memory_info.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

#include "temporary_folder.h"
#include "test_build.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMiB = std::size_t{1} << 20;

// A made-up /proc and /sys.
class MemoryInfoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Write("proc/meminfo", "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:   600 kB\n");
  }

  void Write(const fs::path& path, std::string_view text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  TemporaryFolder folder_;
  fs::path root_ = folder_.path();
};

TEST_F(MemoryInfoTest, TakesTheMachineWhereNoCgroupLimits) {
  EXPECT_EQ(AvailableBytes(root_), 600u * 1024);
  EXPECT_EQ(TotalBytes(root_), 1000u * 1024);
  Write("proc/self/cgroup", "0::/a\n");
  Write("sys/fs/cgroup/a/memory.max", "max\n");
  Write("sys/fs/cgroup/a/memory.current", "5\n");
  EXPECT_EQ(AvailableBytes(root_), 600u * 1024);
  EXPECT_EQ(TotalBytes(root_), 1000u * 1024);
}

TEST_F(MemoryInfoTest, AsksTheSystemWhereThereIsNoProc) {
  fs::remove_all(root_ / "proc");
  EXPECT_GT(AvailableBytes(root_), kMiB);
  EXPECT_GE(TotalBytes(root_), AvailableBytes(root_));
}

TEST_F(MemoryInfoTest, TakesTheTightestCgroupOnTheWayUp) {
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/memory.max", "200000\n");
  Write("sys/fs/cgroup/a/memory.current", "150000\n");
  Write("sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 30000\nactive_file 1000\n");
  Write("sys/fs/cgroup/a/b/memory.max", "400000\n");
  Write("sys/fs/cgroup/a/b/memory.current", "150000\n");
  EXPECT_EQ(AvailableBytes(root_), 200000u - 150000u + 31000u);
  EXPECT_EQ(TotalBytes(root_), 200000u);
}

TEST_F(MemoryInfoTest, ReadsVersionOneOfAContainer) {
  Write("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/docker/f00\n3:cpuset:/\n0::/\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "300000\n");
  Write("sys/fs/cgroup/memory/memory.usage_in_bytes", "310000\n");
  Write("sys/fs/cgroup/memory/memory.stat", "cache 9\ntotal_inactive_file 20000\n");
  EXPECT_EQ(AvailableBytes(root_), 10000u);
  Write("sys/fs/cgroup/memory/memory.stat", "cache 9\n");
  EXPECT_EQ(AvailableBytes(root_), 0u);
}

TEST(MemoryInfo, SeesWhatThisProcessTouches) {
  const std::size_t before = ResidentBytes();
  EXPECT_GT(before, 0u);
  {
    std::vector<char> block(64 * kMiB);
    std::memset(block.data(), 1, block.size());
    EXPECT_GE(ResidentBytes() + kMiB, before + block.size());
    EXPECT_NE(block[block.size() / 2], 0);
  }
  EXPECT_GE(PeakResidentBytes() + kMiB, before + 64 * kMiB);
  EXPECT_GT(AvailableBytes(), 0u);
  EXPECT_GE(TotalBytes(), ResidentBytes());
}

TEST(MemoryInfo, RespectsTheLimitOfTheShell) {
  if (Sanitized()) GTEST_SKIP() << "sanitizers cannot run under a limit on data";
  struct rlimit old = {};
  ASSERT_EQ(getrlimit(RLIMIT_DATA, &old), 0);
  struct rlimit low = old;
  low.rlim_cur = std::size_t{1} << 40;
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &low), 0);
  const std::size_t loose = AvailableBytes();
  low.rlim_cur = 1;
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &low), 0);
  const std::size_t tight = AvailableBytes();
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &old), 0);
  EXPECT_GT(loose, 0u);
  EXPECT_EQ(tight, 0u);
}

}  // namespace
}  // namespace qlora
