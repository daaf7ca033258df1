#include "task/python_random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "qlora/error.h"

namespace qlora {
namespace {

using ::testing::ElementsAreArray;

// Two samples, one after the other, as Python 3.11 draws them: random.Random(seed).sample(range(n),
// k).
struct Draws {
  std::int64_t seed;
  std::int64_t n;
  std::int64_t k;
  std::vector<std::int64_t> first;
  std::vector<std::int64_t> second;
};

TEST(PythonRandomTest, DrawsAsPythonDoes) {
  const Draws all[] = {
      {1234, 8, 2, {7, 0}, {0, 7}},
      {7, 8, 4, {5, 1, 3, 0}, {1, 6, 4, 0}},
      {0, 1000, 5, {864, 394, 776, 911, 430}, {41, 265, 988, 523, 497}},
      {42,
       1000,
       10,
       {654, 114, 25, 759, 281, 250, 228, 142, 754, 104},
       {692, 758, 913, 558, 89, 604, 432, 32, 30, 95}},
      // Beside the number of records at which Python takes a set instead of a list.
      {-3, 85, 6, {30, 75, 69, 16, 47, 77}, {60, 80, 74, 8, 77, 1}},
      {1, 84, 6, {17, 72, 8, 32, 15, 63}, {57, 60, 48, 26, 12, 62}},
      {1099511627781, 22, 5, {16, 8, 21, 0, 1}, {5, 2, 4, 7, 20}},  // a seed of two words
  };
  for (const Draws& draws : all) {
    PythonRandom random(draws.seed);
    EXPECT_THAT(random.Sample(draws.n, draws.k), ElementsAreArray(draws.first)) << draws.seed;
    EXPECT_THAT(random.Sample(draws.n, draws.k), ElementsAreArray(draws.second)) << draws.seed;
  }
}

TEST(PythonRandomTest, RefusesMoreThanThereAre) {
  EXPECT_THROW(PythonRandom(1).Sample(2, 3), Error);
}

}  // namespace
}  // namespace qlora
