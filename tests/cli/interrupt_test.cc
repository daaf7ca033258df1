#include "terminal/interrupt.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace qlora {
namespace {

TEST(Interrupt, TheFirstSignalSetsAFlag) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    InterruptGuard guard;
    EXPECT_FALSE(guard.requested());
    EXPECT_NO_THROW(guard.ThrowIfRequested());
    raise(signal);
    EXPECT_TRUE(guard.requested());
    EXPECT_THROW(guard.ThrowIfRequested(), Interrupted);
    guard.Rearm();
    EXPECT_FALSE(guard.requested());
    raise(signal);
    EXPECT_TRUE(guard.requested());
  }
}

TEST(Interrupt, ASignalBeforeAReadIsNoticed) {
  int ends[2] = {};
  ASSERT_EQ(pipe(ends), 0);
  InterruptGuard guard;
  for (int round = 0; round < 2; ++round) {
    raise(SIGTERM);
    EXPECT_FALSE(guard.WaitForInput(ends[0])) << "there is nothing to read";
    guard.Rearm();
    ASSERT_EQ(write(ends[1], "x", 1), 1);
    EXPECT_TRUE(guard.WaitForInput(ends[0]));
    char key = 0;
    ASSERT_EQ(read(ends[0], &key, 1), 1);
  }
  close(ends[1]);
  EXPECT_TRUE(guard.WaitForInput(ends[0])) << "the end can be read";
  close(ends[0]);
}

TEST(Interrupt, GivesTheOldHandlersBack) {
  struct sigaction before = {};
  struct sigaction after = {};
  sigaction(SIGINT, nullptr, &before);
  { InterruptGuard guard; }
  sigaction(SIGINT, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

TEST(Interrupt, NohupStaysInForce) {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  {
    InterruptGuard guard;
    raise(SIGHUP);
    EXPECT_FALSE(guard.requested());
  }
  std::signal(SIGHUP, before);
}

// A manager of jobs that asks again wants what it asked for, not the end of it.
TEST(Interrupt, OtherSignalsMayComeAgain) {
  for (const int signal : {SIGTERM, SIGHUP, SIGUSR1}) {
    InterruptGuard guard;
    for (int i = 0; i < 5; ++i) raise(signal);
    EXPECT_EQ(guard.signal(), signal);
    raise(SIGINT);  // the first press of Ctrl+C
    EXPECT_TRUE(guard.requested());
  }
}

TEST(InterruptDeathTest, TheSecondSignalEndsTheProcess) {
  EXPECT_EXIT(
      {
        InterruptGuard guard;
        raise(SIGINT);
        raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace qlora
