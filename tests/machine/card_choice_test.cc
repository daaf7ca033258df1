#include "machine/card_choice.h"

#include <gtest/gtest.h>

#include "qlora/error.h"

namespace qlora {
namespace {

TEST(CardChoice, EachRankHasACardOfItsOwn) {
  EXPECT_EQ(CardOf(1, 2, std::nullopt, 2), "1");
  EXPECT_EQ(CardOf(1, 2, std::nullopt, 4), "1");
  EXPECT_EQ(CardOf(1, 2, "2,3", 4), "3");
  EXPECT_EQ(CardOf(0, 2, "GPU-5,GPU-7", 4), "GPU-5");
}

TEST(CardChoice, ALauncherMayHaveChosen) {
  EXPECT_EQ(CardOf(1, 2, "0", 1), "0");
  EXPECT_EQ(CardOf(1, 2, "5", 8), "5");
}

TEST(CardChoice, FewerCardsThanRanksAreRefused) {
  EXPECT_THROW(CardOf(1, 2, std::nullopt, 1), Error);
  EXPECT_THROW(CardOf(0, 3, "4,6", 8), Error);
}

// CUDA says that there is no card.
TEST(CardChoice, NoCardIsNotChosen) {
  EXPECT_EQ(CardOf(1, 2, std::nullopt, 0), "");
  EXPECT_EQ(CardOf(1, 2, "", 4), "");
}

}  // namespace
}  // namespace qlora
