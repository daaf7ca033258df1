#include "base/pool_thread.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <future>

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
  void SetUp() override {
    std::promise<pid_t> id;
    thread_.Start(1, [&] {
      id.set_value(gettid());
      entered_.get_future().wait();
      thread_.Enter();
      inside_.set_value();
      leave_.get_future().wait();
      thread_.Leave();
      outside_.set_value();
      end_.get_future().wait();
    });
    id_ = id.get_future().get();
  }

  void TearDown() override {
    end_.set_value();
    thread_.Join();
  }

  void Enter() {
    entered_.set_value();
    inside_.get_future().wait();
  }

  void Leave() {
    leave_.set_value();
    outside_.get_future().wait();
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
  pid_t id_ = 0;
  std::promise<void> entered_, inside_, leave_, outside_, end_;
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
  cpu_set_t all = Allowed();
  if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "one core";
  Enter();
  cpu_set_t mine, other = all;
  CPU_ZERO(&mine);
  CPU_SET(sched_getcpu(), &mine);
  CPU_XOR(&other, &all, &mine);
  ASSERT_EQ(sched_setaffinity(0, sizeof(mine), &mine), 0);
  ASSERT_EQ(sched_setaffinity(id_, sizeof(other), &other), 0);
  const bool lent = LendCore();
  ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
  EXPECT_FALSE(lent);
  Leave();
  thread_.ReturnCore();
  const cpu_set_t after = Allowed(id_);
  EXPECT_TRUE(CPU_EQUAL(&after, &other)) << "what was allowed by others stays";
}

}  // namespace
}  // namespace qlora
