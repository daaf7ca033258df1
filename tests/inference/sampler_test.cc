#include "inference/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

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

// The tokens of a thousand draws with probabilities of 0.5, 0.3, 0.15 and 0.05, in which each that
// is kept comes up.
std::set<std::int32_t> Drawn(double top_p, double min_p) {
  GenerateOptions options;
  options.do_sample = true;
  options.top_p = top_p;
  options.min_p = min_p;
  Sampler sampler(options);
  const std::vector<float> logits = {std::log(0.15f), std::log(0.5f), std::log(0.05f),
                                     std::log(0.3f)};
  std::set<std::int32_t> tokens;
  for (int draw = 0; draw < 1000; ++draw) tokens.insert(sampler.Next(logits, {}, draw));
  return tokens;
}

TEST(Sampler, TopPKeepsTheFewestThatReachIt) {
  using Tokens = std::set<std::int32_t>;
  EXPECT_EQ(Drawn(0.01, 0), Tokens{1});
  EXPECT_EQ(Drawn(0.45, 0), Tokens{1});
  EXPECT_EQ(Drawn(0.55, 0), (Tokens{1, 3}));
  EXPECT_EQ(Drawn(0.75, 0), (Tokens{1, 3}));
  EXPECT_EQ(Drawn(0.85, 0), (Tokens{0, 1, 3}));
  EXPECT_EQ(Drawn(1, 0), (Tokens{0, 1, 2, 3}));
}

// Of the probability of the likeliest.
TEST(Sampler, MinPLeavesOutWhatIsLessLikely) {
  using Tokens = std::set<std::int32_t>;
  EXPECT_EQ(Drawn(1, 0.7), Tokens{1});
  EXPECT_EQ(Drawn(1, 0.5), (Tokens{1, 3}));
  EXPECT_EQ(Drawn(1, 0.25), (Tokens{0, 1, 3}));
  EXPECT_EQ(Drawn(1, 0.05), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(Drawn(0.55, 0.25), (Tokens{1, 3}));
}

// Limits that leave out nothing change no draw, nor does the order of equal logits.
TEST(Sampler, LimitsThatKeepAllTokensDrawTheSame) {
  std::vector<float> logits;
  for (int i = 0; i < 200; ++i) logits.push_back(static_cast<float>(i * 37 % 50) * 0.1f);
  GenerateOptions options;
  options.do_sample = true;
  Sampler plain(options);
  options.min_p = 1e-30;
  Sampler of_min_p(options);
  options.min_p = 0;
  options.top_k = 199;
  Sampler of_top_k(options);
  std::set<std::int32_t> tokens;
  int others = 0;
  for (int draw = 0; draw < 1000; ++draw) {
    const std::int32_t token = plain.Next(logits, {}, draw);
    EXPECT_EQ(of_min_p.Next(logits, {}, draw), token) << draw;
    others += of_top_k.Next(logits, {}, draw) != token ? 1 : 0;
    tokens.insert(token);
  }
  EXPECT_GT(tokens.size(), 100u);
  EXPECT_LT(others, 100);  // the least likely one of 200 is left out
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

// Not the first of them.
TEST(Sampler, NoTokenIsChosenWhereAllAreForbidden) {
  constexpr float kForbidden = -std::numeric_limits<float>::infinity();
  for (const bool sample : {false, true}) {
    GenerateOptions options;
    options.do_sample = sample;
    Sampler sampler(options);
    EXPECT_THROW(sampler.Next(std::vector<float>(3, kForbidden), {}, 0), Error);
    EXPECT_EQ(sampler.Next(std::vector<float>{kForbidden, 1, kForbidden}, {}, 0), 1);
  }
}

}  // namespace
}  // namespace qlora
