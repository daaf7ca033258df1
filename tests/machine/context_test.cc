#include "qlora/context.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "qlora/error.h"

namespace qlora {
namespace {

class ContextTest : public testing::TestWithParam<int> {};

TEST_P(ContextTest, RunsEveryTaskOnce) {
  Context context(GetParam());
  EXPECT_EQ(context.threads(), GetParam());
  for (const std::int64_t tasks : {0, 1, 2, 3, 64, 1000}) {
    std::vector<std::atomic<int>> runs(tasks);
    context.ParallelFor(tasks, [&](std::int64_t i, int worker) {
      EXPECT_GE(worker, 0);
      EXPECT_LT(worker, GetParam());
      ++runs[i];
    });
    for (const std::atomic<int>& count : runs) EXPECT_EQ(count, 1);
  }
}

// What one call writes, the next call and the caller see, without any atomics of their own.
TEST_P(ContextTest, CallsHappenOneAfterTheOther) {
  Context context(GetParam());
  constexpr std::int64_t kTasks = 16;
  std::vector<std::int64_t> values(kTasks);
  for (int round = 0; round < 2000; ++round) {
    context.ParallelFor(kTasks,
                        [&](std::int64_t i, int) { values[i] += values[i] == round ? 1 : 100; });
    context.ParallelFor(kTasks - 1,
                        [&](std::int64_t i, int) { EXPECT_EQ(values[i + 1], round + 1); });
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), std::int64_t{0}), kTasks * (round + 1));
  }
}

// No two tasks of one worker overlap, so that a worker's scratch memory is its own.
TEST_P(ContextTest, AWorkerRunsOneTaskAtATime) {
  Context context(GetParam());
  std::vector<std::atomic<bool>> busy(GetParam());
  context.ParallelFor(500, [&](std::int64_t, int worker) {
    EXPECT_FALSE(busy[worker].exchange(true));
    std::this_thread::yield();
    busy[worker] = false;
  });
}

// Workers that went to sleep between calls wake up again.
TEST_P(ContextTest, WakesUpAfterAPause) {
  Context context(GetParam());
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    std::atomic<int> runs = 0;
    context.ParallelFor(100, [&](std::int64_t, int) { ++runs; });
    EXPECT_EQ(runs, 100);
  }
}

// A slow task does not keep the others from being done: indices are handed out one by one.
TEST(Context, HandsOutTasksOneByOne) {
  Context context(2);
  std::atomic<int> others = 0;
  context.ParallelFor(100, [&](std::int64_t i, int) {
    if (i > 0) {
      ++others;
      return;
    }
    while (others < 99) std::this_thread::yield();  // forever, if the others waited for it
  });
  EXPECT_EQ(others, 99);
}

// More threads than cores are put aside in the midst of tasks, and some are lent a core
// (pool_thread_test shows that); all end as they began.
TEST_P(ContextTest, ThreadsMayRunWhereTheyMightBefore) {
  Context context(GetParam());
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  for (int round = 0; round < 50; ++round) {
    context.ParallelFor(16, [](std::int64_t, int) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(200);
      while (std::chrono::steady_clock::now() < end) continue;
    });
  }
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    cpu_set_t now;
    const pid_t id = std::stoi(thread.path().filename());
    if (sched_getaffinity(id, sizeof(now), &now) != 0) continue;  // of an earlier test, at its end
    EXPECT_TRUE(CPU_EQUAL(&now, &allowed)) << "thread " << id;
  }
}

TEST(Context, RefusesMoreThreadsThanTheSystemGives) {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  if (pages > (1 << 16)) GTEST_SKIP() << "a sanitizer's address space cannot be limited";
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &limit), 0);
  const rlim_t room = rlim_t{64} << 20;
  const rlimit low = {pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + room, limit.rlim_max};
  if (setrlimit(RLIMIT_AS, &low) != 0) GTEST_SKIP() << "the address space cannot be limited";
  ErrorCode code = ErrorCode::kRuntime;
  try {
    const Context context(4096);
  } catch (const Error& error) {
    code = error.code();
  }
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  EXPECT_EQ(code, ErrorCode::kInvalidInput);
}

INSTANTIATE_TEST_SUITE_P(Threads, ContextTest, testing::Values(1, 2, 3, 4, 8));

TEST(Context, SeveralLiveSideBySide) {
  std::vector<std::jthread> callers;
  std::atomic<int> total = 0;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      Context context(2);
      for (int round = 0; round < 100; ++round) {
        context.ParallelFor(10, [&](std::int64_t, int) { ++total; });
      }
    });
  }
  callers.clear();
  EXPECT_EQ(total, 3 * 100 * 10);
}

TEST(Context, DefaultsToTheCoresThatThisProcessMayUse) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  const Context all;
  EXPECT_GE(all.threads(), 1);
  EXPECT_LE(all.threads(), CPU_COUNT(&allowed));

  int first = 0;
  while (!CPU_ISSET(first, &allowed)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const Context single;
  ASSERT_EQ(sched_setaffinity(0, sizeof(allowed), &allowed), 0);
  EXPECT_EQ(single.threads(), 1);
}

}  // namespace
}  // namespace qlora
