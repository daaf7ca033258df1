#include "inference/sampler.h"

#include <gtest/gtest.h>

#include <cmath>

#include "qlora/error.h"

namespace qlora {
namespace {

TEST(Sampler, GreedyTakesTheFirstOfTheLikeliest) {
  Sampler sampler(GenerateOptions{});
  EXPECT_EQ(sampler.Next(std::vector<float>{1, 3, 3, 2}, {}, 0), 1);
}

TEST(Sampler, DrawsFromTheTopOnlyAndEachDrawIsItsOwn) {
  GenerateOptions options;
  options.do_sample = true;
  options.top_k = 2;
  Sampler sampler(options);
  const std::vector<float> logits = {0, 2, 1.9f, 1.8f};
  int first = 0;
  for (int draw = 0; draw < 1000; ++draw) {
    const std::int32_t token = sampler.Next(logits, {}, draw);
    ASSERT_TRUE(token == 1 || token == 2);
    EXPECT_EQ(token, sampler.Next(logits, {}, draw));
    first += token == 1;
  }
  // p = 1 / (1 + e^-0.1) = 0.525; four standard deviations of 1000 draws.
  EXPECT_NEAR(first, 525, 4 * std::sqrt(1000 * 0.525 * 0.475));
}

TEST(Sampler, RepetitionPenaltyCountsATokenOnce) {
  GenerateOptions options;
  options.repetition_penalty = 2;
  Sampler sampler(options);
  const std::vector<std::int32_t> context = {1, 1, 1};
  EXPECT_EQ(sampler.Next(std::vector<float>{1.1f, 2, 0}, context, 0), 0);
  EXPECT_EQ(sampler.Next(std::vector<float>{0.9f, 2, 0}, context, 0), 1);
}

TEST(Sampler, RefusesNan) {
  for (const bool sample : {false, true}) {
    GenerateOptions options;
    options.do_sample = sample;
    Sampler sampler(options);
    const std::vector<float> logits = {0, std::nanf(""), 1};
    EXPECT_THROW(sampler.Next(logits, {}, 0), Error);
  }
}

}  // namespace
}  // namespace qlora
