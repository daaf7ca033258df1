#include "base/random.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <set>

namespace qlora {
namespace {

// Known answers of Philox4x32-10 from the authors' Random123 (kat_vectors).
TEST(Random, IsPhilox4x32With10Rounds) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(RandomWords({0, 0}, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(RandomWords({~std::uint64_t{0}, ~std::uint64_t{0}}, ~std::uint64_t{0}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(RandomWords({0x299f31d0a4093822, 0x0370734413198a2e}, 0x85a308d3243f6a88),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, WordsAreNumberedAcrossBlocks) {
  const RandomKey key = MakeKey(5, RandomPlace::kTest, 9);
  for (std::uint64_t i = 0; i < 40; ++i) {
    EXPECT_EQ(RandomWord(key, i), RandomWords(key, i / 4)[i % 4]);
    EXPECT_EQ(RandomUniform(key, i), static_cast<float>(RandomWord(key, i) >> 8) * 0x1p-24f);
  }
}

TEST(Random, StreamsDiffer) {
  std::set<std::uint32_t> words;
  for (const RandomPlace place : {RandomPlace::kLoraInit, RandomPlace::kLoraDropout}) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      for (std::uint64_t detail = 0; detail < 4; ++detail) {
        words.insert(RandomWord(MakeKey(seed, place, detail), 0));
      }
    }
  }
  EXPECT_EQ(words.size(), 32u);
}

// Five standard errors of the mean and of the second moment.
TEST(Random, MomentsAreThoseOfTheDistributions) {
  constexpr int kCount = 100000;
  const RandomKey key = MakeKey(1, RandomPlace::kTest);
  double uniform = 0;
  double below = 0;
  double normal = 0;
  double normal_square = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const float u = RandomUniform(key, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    uniform += u;
    const std::uint64_t b = RandomBelow(key, i, 7);
    ASSERT_LT(b, 7u);
    below += static_cast<double>(b);
    const double n = RandomNormal(key, i);
    ASSERT_TRUE(std::isfinite(n));
    normal += n;
    normal_square += n * n;
  }
  const double root = std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(uniform / kCount, 0.5, 5 * std::sqrt(1.0 / 12) / root);
  EXPECT_NEAR(below / kCount, 3, 5 * 2 / root);
  EXPECT_NEAR(normal / kCount, 0, 5 / root);
  EXPECT_NEAR(normal_square / kCount, 1, 5 * std::sqrt(2.0) / root);
}

TEST(Random, BelowOneIsZeroAndLargeBoundsWork) {
  const RandomKey key = MakeKey(1, RandomPlace::kTest);
  EXPECT_EQ(RandomBelow(key, 3, 1), 0u);
  const std::uint64_t large = std::uint64_t{1} << 63;
  bool high = false;
  for (std::uint64_t i = 0; i < 64; ++i) {
    const std::uint64_t value = RandomBelow(key, i, large);
    ASSERT_LT(value, large);
    high = high || value > large / 2;
  }
  EXPECT_TRUE(high);
}

}  // namespace
}  // namespace qlora
