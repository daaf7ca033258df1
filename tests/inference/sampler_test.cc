#include "inference/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "base/random.h"
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

// What the definition draws: tokens in order, of which top_p keeps the first.
std::int32_t ByDefinition(std::span<const float> logits, const GenerateOptions& options,
                          std::int64_t draw) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](auto a, auto b) { return logits[a] > logits[b]; });
  std::vector<double> weights;
  for (const std::int32_t token : order) {
    weights.push_back(std::exp((double{logits[token]} - logits[order[0]]) / options.temperature));
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::size_t count = weights.size();
  double kept = total;
  if (options.top_p < 1) {
    kept = count = 0;
    while (count < weights.size() && kept < options.top_p * total) kept += weights[count++];
  }
  const RandomKey key = MakeKey(options.seed, RandomPlace::kSampling);
  double target = double{RandomUniform(key, static_cast<std::uint64_t>(draw))} * kept;
  for (std::size_t i = 0; i + 1 < count; ++i) {
    if (target < weights[i]) return order[i];
    target -= weights[i];
  }
  return order[count - 1];
}

// One token that is far above many, which together are as likely; and tokens that cannot be drawn.
TEST(Sampler, DrawsWhatTheDefinitionDraws) {
  std::vector<float> logits(3001, -std::numeric_limits<float>::infinity());
  for (int i = 0; i < 3000; ++i) logits[i] = static_cast<float>(i * 37 % 50) * 0.02f;
  logits[1234] = 11.2f;
  logits[17] = logits.back();
  GenerateOptions options;
  options.do_sample = true;
  for (const double temperature : {0.6, 1.0, 2.5}) {
    for (const double top_p : {1.0, 0.97}) {
      options.temperature = temperature;
      options.top_p = top_p;
      Sampler sampler(options);
      std::set<std::int32_t> tokens;
      for (int draw = 0; draw < 200; ++draw) {
        const std::int32_t token = sampler.Next(logits, {}, draw);
        EXPECT_EQ(token, ByDefinition(logits, options, draw)) << draw;
        tokens.insert(token);
      }
      if (temperature >= 1) {
        EXPECT_GT(tokens.size(), 3u) << temperature;
      }
    }
  }
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
