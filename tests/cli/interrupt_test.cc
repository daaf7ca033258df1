#include "interrupt.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

TEST(Interrupt, TheFirstSignalSetsAFlag) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
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
