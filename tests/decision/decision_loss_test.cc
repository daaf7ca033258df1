#include "decision/decision_loss.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "base/random.h"
#include "io/test_util.h"

namespace qlora {
namespace {

using Complex = std::complex<double>;

const DecisionLossOptions kOptions[] = {
    {},
    {.label_smoothing = 0.1},
    {.brier_weight = 0.5},
    {.ordinal_weight = 0.7},
    {.label_smoothing = 0.3, .brier_weight = 2, .ordinal_weight = 1.5}};

// Every term of the gradient is a sum of at most n products of numbers below `scale`; the imaginary
// part of a complex step has no other error than rounding.
TEST(DecisionLossTest, TheGradientIsThatOfAComplexStep) {
  constexpr double kStep = 1e-60;
  const RandomKey key = MakeKey(1, RandomPlace::kTest);
  std::uint64_t next = 0;
  for (int i = 0; i < 400; ++i) {
    const std::size_t n = 2 + RandomBelow(key, next++, 9);
    const double scale = i % 4 == 0 ? 40 : 3;
    std::vector<double> z(n);
    std::vector<double> t(n);
    for (std::size_t k = 0; k < n; ++k) {
      z[k] = scale * RandomNormal(key, next++);
      t[k] = RandomUniform(key, next++);
    }
    if (i % 2 == 0) t = std::vector<double>(n), t[RandomBelow(key, next++, n)] = 1;
    const double sum = std::accumulate(t.begin(), t.end(), 0.0);
    for (double& share : t) share /= sum;
    for (const QuestionType type : kQuestionTypes) {
      for (const DecisionLossOptions& options : kOptions) {
        const std::vector<double> gradient = DecisionLossGradient(z, t, type, options);
        for (std::size_t k = 0; k < n; ++k) {
          std::vector<Complex> moved(z.begin(), z.end());
          moved[k] += Complex(0, kStep);
          const Complex loss = DecisionLoss<Complex>(moved, t, type, options);
          // exp(z - log sum) has a relative error of eps times |z|.
          const double bound = 16 * static_cast<double>(n) * (1 + 8 * scale) *
                               std::numeric_limits<double>::epsilon() *
                               (1 + 2 * options.brier_weight + options.ordinal_weight);
          EXPECT_NEAR(loss.imag() / kStep, gradient[k], bound) << i << " " << k;
        }
      }
    }
  }
}

TEST(DecisionLossTest, KnownValues) {
  const std::vector<double> z = {0, std::log(3.0)};
  const std::vector<double> t = {1, 0};
  const auto loss = [&](QuestionType type, const DecisionLossOptions& options) {
    return DecisionLoss<double>(z, t, type, options);
  };
  EXPECT_NEAR(loss(QuestionType::kNoul, {}), std::log(4.0), 1e-15);
  EXPECT_NEAR(loss(QuestionType::kNoul, {.label_smoothing = 0.5}),
              0.75 * std::log(4.0) + 0.25 * std::log(4.0 / 3), 1e-15);
  EXPECT_NEAR(loss(QuestionType::kNoul, {.brier_weight = 2}), std::log(4.0) + 2 * 1.125, 1e-14);
  EXPECT_NEAR(loss(QuestionType::kNoul, {.ordinal_weight = 2}), std::log(4.0), 1e-15);
  EXPECT_NEAR(loss(QuestionType::kScore, {.ordinal_weight = 2}), std::log(4.0) + 2 * 0.75, 1e-14);
  EXPECT_EQ(DecisionLoss<double>(std::vector<double>{-800, 800}, t, QuestionType::kNoul, {}), 1600);
}

TEST(DecisionLossTest, RefusesOptionsOutOfRange) {
  ExpectRefused([] { CheckLossOptions({.label_smoothing = 1}); }, "label_smoothing");
  ExpectRefused([] { CheckLossOptions({.label_smoothing = -0.1}); }, "label_smoothing");
  ExpectRefused([] { CheckLossOptions({.brier_weight = -1}); }, "brier_weight");
  ExpectRefused([] { CheckLossOptions({.ordinal_weight = NAN}); }, "ordinal_weight");
  CheckLossOptions({.label_smoothing = 0.999, .brier_weight = 3, .ordinal_weight = 3});
}

}  // namespace
}  // namespace qlora
