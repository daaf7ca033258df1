#include "preference/preference_loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <complex>
#include <limits>
#include <string>

#include "base/random.h"

namespace qlora {
namespace {

using Complex = std::complex<double>;
using Loss = PreferenceLoss;

constexpr double kEps = std::numeric_limits<double>::epsilon();
constexpr double kStep = 1e-60;

const Loss kPairLosses[] = {Loss::kSigmoid, Loss::kRobust,  Loss::kHinge,    Loss::kIpo,
                            Loss::kApoZero, Loss::kApoDown, Loss::kSppoHard, Loss::kSigmoidNorm,
                            Loss::kNcaPair, Loss::kBcoPair, Loss::kExoPair,  Loss::kDiscopop,
                            Loss::kOrpo,    Loss::kSimpo,   Loss::kCpo};

PreferenceLossOptions OptionsOf(Loss loss, double beta, double smoothing) {
  PreferenceLossOptions options;
  options.terms = {{loss, 1}};
  options.beta = beta;
  options.label_smoothing = smoothing;
  options.simpo_gamma = 0.5;
  return options;
}

PairLogprobs<Complex> Moved(const PairLogprobs<double>& pair, double chosen, double rejected) {
  return {Complex(pair.chosen, chosen),
          Complex(pair.rejected, rejected),
          pair.ref_chosen,
          pair.ref_rejected,
          pair.chosen_tokens,
          pair.rejected_tokens};
}

// A few dozen roundings of terms as large as the arguments of the exponentials.
double BoundOf(const PairLogprobs<double>& pair, const PreferenceLossOptions& o, double gradient) {
  const double sizes = std::abs(pair.chosen) + std::abs(pair.rejected) + std::abs(pair.ref_chosen) +
                       std::abs(pair.ref_rejected) + 1 / o.beta;
  const double steepest = o.beta * (1 + 1 / o.discopop_tau);
  return 64 * kEps * (1 + sizes) * (1 + steepest) * (1 + std::abs(gradient));
}

void ExpectGradientOfComplexStep(Loss loss, const PairLogprobs<double>& pair,
                                 const PreferenceLossOptions& options) {
  const PairGradient gradient = PairLossGradient(loss, pair, options);
  const double chosen = PairLoss(loss, Moved(pair, kStep, 0), options).imag() / kStep;
  const double rejected = PairLoss(loss, Moved(pair, 0, kStep), options).imag() / kStep;
  const std::string what(NameOf(loss));
  EXPECT_NEAR(gradient.chosen, chosen, BoundOf(pair, options, chosen)) << what;
  EXPECT_NEAR(gradient.rejected, rejected, BoundOf(pair, options, rejected)) << what;
}

TEST(PreferenceLossTest, TheGradientIsThatOfAComplexStep) {
  const RandomKey key = MakeKey(3, RandomPlace::kTest);
  std::uint64_t next = 0;
  for (int i = 0; i < 300; ++i) {
    const double scale = i % 5 == 0 ? 300 : 5;
    const auto logp = [&] { return -scale * (0.01 + RandomUniform(key, next++)); };
    const auto tokens = [&] { return 1.0 + static_cast<double>(RandomBelow(key, next++, 40)); };
    const PairLogprobs<double> pair{logp(), logp(), logp(), logp(), tokens(), tokens()};
    for (const Loss loss : kPairLosses) {
      const double beta = i % 3 == 0 ? 2 : 0.1;
      ExpectGradientOfComplexStep(loss, pair, OptionsOf(loss, beta, i % 2 == 0 ? 0.1 : 0.001));
    }
  }
}

TEST(PreferenceLossTest, TheGradientOfLabelsIsThatOfAComplexStep) {
  const RandomKey key = MakeKey(4, RandomPlace::kTest);
  std::uint64_t next = 0;
  for (int i = 0; i < 300; ++i) {
    PreferenceLossOptions options = OptionsOf(Loss::kKto, 0.1, 0);
    options.desirable_weight = 1.5;
    options.undesirable_weight = 0.25;
    const double r = (i % 5 == 0 ? 300 : 5) * RandomNormal(key, next++);
    const double k = std::max(0.0, RandomNormal(key, next++));
    for (const bool desirable : {true, false}) {
      const double gradient = LabelLoss(Complex(r, kStep), desirable, k, options).imag() / kStep;
      EXPECT_NEAR(LabelLossGradient(r, desirable, k, options), gradient,
                  64 * kEps * (1 + std::abs(r)));
    }
  }
}

TEST(PreferenceLossTest, IsFiniteFarOut) {
  for (const Loss loss : kPairLosses) {
    const PreferenceLossOptions options = OptionsOf(loss, 0.1, 0.001);
    for (const double z : {0.0, 30.0, -30.0, 1e4, -1e4}) {
      for (const double tokens : {1.0, 100.0}) {
        const PairLogprobs<double> pair{-2e5 + z / 0.1, -2e5, -2e5, -2e5, tokens, 1};
        const PairGradient gradient = PairLossGradient(loss, pair, options);
        EXPECT_TRUE(std::isfinite(PairLoss(loss, pair, options))) << NameOf(loss) << " " << z;
        EXPECT_TRUE(std::isfinite(gradient.chosen)) << NameOf(loss) << " " << z;
        EXPECT_TRUE(std::isfinite(gradient.rejected)) << NameOf(loss) << " " << z;
      }
    }
    for (const double a : {0.0, -1e-9, -1e3}) {
      const PairLogprobs<double> pair{a, -1, 0, 0, 1, 1};
      const PairGradient gradient = PairLossGradient(loss, pair, options);
      EXPECT_TRUE(std::isfinite(PairLoss(loss, pair, options))) << NameOf(loss) << " " << a;
      EXPECT_TRUE(std::isfinite(gradient.chosen)) << NameOf(loss) << " " << a;
    }
  }
}

// A swap turns the losses of the margin alone over.
TEST(PreferenceLossTest, ASwapOfTheAnswersTurnsTheMargin) {
  const PairLogprobs<double> pair{-10, -30, -14, -12, 5, 9};
  const PairLogprobs<double> swapped{-30, -10, -12, -14, 9, 5};
  const double z = 0.1 * (4 + 18);
  const PreferenceLossOptions options = OptionsOf(Loss::kSigmoid, 0.1, 0);
  EXPECT_NEAR(PairLoss(Loss::kSigmoid, pair, options), std::log1p(std::exp(-z)), 1e-14);
  EXPECT_NEAR(PairLoss(Loss::kSigmoid, swapped, options), std::log1p(std::exp(z)), 1e-14);
  EXPECT_NEAR(PairLoss(Loss::kHinge, pair, options), 0, 1e-14);
  EXPECT_NEAR(PairLoss(Loss::kHinge, swapped, options), 1 + z, 1e-14);
}

TEST(PreferenceLossTest, EqualToTheReferenceIsLogTwo) {
  const PairLogprobs<double> pair{-10, -30, -10, -30, 5, 9};
  for (const Loss loss : {Loss::kSigmoid, Loss::kSigmoidNorm}) {
    for (const double smoothing : {0.0, 0.1}) {
      EXPECT_EQ(PairLoss(loss, pair, OptionsOf(loss, 0.1, smoothing)), std::log(2.0));
    }
  }
  const PairRewards rewards = RewardsOf(pair, OptionsOf(Loss::kSigmoid, 0.1, 0));
  EXPECT_EQ(rewards.chosen, 0);
  EXPECT_EQ(rewards.rejected, 0);
}

TEST(PreferenceLossTest, IsFoundByItsName) {
  for (const std::string_view name : PreferenceLossNames()) {
    const auto loss = FindPreferenceLoss(name);
    ASSERT_TRUE(loss) << name;
    EXPECT_EQ(NameOf(*loss), name);
  }
  EXPECT_EQ(FindPreferenceLoss("sigmoid_norm"), Loss::kSigmoidNorm);
  EXPECT_EQ(FindPreferenceLoss("dpo"), std::nullopt);
}

TEST(PreferenceLossTest, SmoothingChangesTheLossesThatUseItAlone) {
  const PairLogprobs<double> pair{-10, -30, -14, -12, 5, 9};
  for (const Loss loss : kPairLosses) {
    const bool uses = loss == Loss::kSigmoid || loss == Loss::kRobust || loss == Loss::kExoPair;
    const double plain = PairLoss(loss, pair, OptionsOf(loss, 0.1, 0.001));
    const double smooth = PairLoss(loss, pair, OptionsOf(loss, 0.1, 0.2));
    EXPECT_EQ(uses, plain != smooth) << NameOf(loss);
  }
}

}  // namespace
}  // namespace qlora
