#include "machine/pool_thread.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>

namespace qlora {
namespace {

// The cores that a thread may run on; 0: the calling thread.
cpu_set_t Allowed(pid_t thread = 0) {
  cpu_set_t cpus;
  EXPECT_EQ(sched_getaffinity(thread, sizeof(cpus), &cpus), 0);
  return cpus;
}

// A thread that sleeps in the midst of what it has entered: like one that was put aside, it does
// not run.
class PoolThreadTest : public testing::Test {
 protected:
  PoolThreadTest() {
    thread_.Start([this] {
      id_ = gettid();
      Reached(kStarted);
      Await(kEnter);
      thread_.Enter();
      Reached(kInside);
      Await(kLeave);
      thread_.Leave();
      Reached(kOutside);
      Await(kEnd);
    });
    Await(kStarted);
  }
  ~PoolThreadTest() override {
    Reached(kEnd);
    thread_.Join();
  }

  void Enter() {
    Reached(kEnter);
    Await(kInside);
  }
  void Leave() {
    Reached(kLeave);
    Await(kOutside);
  }

  // Asks until two calls in turn saw that it did not run: after Enter it takes a while to sleep.
  bool LendCore() {
    for (int look = 0; look < 1000; ++look) {
      if (thread_.LendCore()) return true;
      sched_yield();
    }
    return false;
  }

  PoolThread thread_;
  std::atomic<pid_t> id_ = 0;

 private:
  enum Stage { kNone, kStarted, kEnter, kInside, kLeave, kOutside, kEnd };

  // Never back, so that the end can be called at any stage.
  void Reached(Stage stage) {
    int now = stage_;
    while (now < stage && !stage_.compare_exchange_weak(now, stage)) continue;
    stage_.notify_all();
  }
  void Await(Stage stage) {
    for (int now = stage_; now < stage; now = stage_) stage_.wait(now);
  }

  std::atomic<int> stage_ = kNone;
};

TEST_F(PoolThreadTest, RunsOnTheLentCoreUntilItIsReturned) {
  const cpu_set_t before = Allowed(id_);
  Enter();
  ASSERT_TRUE(LendCore());
  const cpu_set_t lent = Allowed(id_);
  EXPECT_EQ(CPU_COUNT(&lent), 1);
  EXPECT_FALSE(thread_.LendCore()) << "it was lent one already";
  Leave();
  thread_.ReturnCore();
  const cpu_set_t after = Allowed(id_);
  EXPECT_TRUE(CPU_EQUAL(&after, &before));
}

TEST_F(PoolThreadTest, NothingIsLentOutside) {
  EXPECT_FALSE(LendCore());
  Enter();
  Leave();
  EXPECT_FALSE(LendCore());
}

TEST_F(PoolThreadTest, OnlyAnAllowedCoreIsLent) {
  const cpu_set_t all = Allowed();
  if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "one core";
  cpu_set_t mine, others;
  CPU_ZERO(&mine);
  CPU_SET(sched_getcpu(), &mine);
  CPU_XOR(&others, &all, &mine);
  ASSERT_EQ(sched_setaffinity(id_, sizeof(others), &others), 0);
  ASSERT_EQ(sched_setaffinity(0, sizeof(mine), &mine), 0);
  Enter();
  const bool lent = LendCore();
  EXPECT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
  EXPECT_FALSE(lent);
  const cpu_set_t after = Allowed(id_);
  EXPECT_TRUE(CPU_EQUAL(&after, &others));
}

}  // namespace
}  // namespace qlora
