// Schedules that end above 0, with values of transformers' formulas.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "plan/run/prepared_run.h"
#include "step/schedule.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

constexpr double kRate = 1e-3;
constexpr double kTolerance = 1e-15;  // of rates of 1e-3, a few roundings of doubles

double Linear(double progress) { return 1 - progress; }
double Cosine(double progress) { return 0.5 * (1 + std::cos(std::numbers::pi * progress)); }

Schedule Of(SchedulerType type) {
  return {.type = type, .learning_rate = kRate, .warmup_steps = 2, .total_steps = 10};
}

TEST(ScheduleEndTest, Polynomial) {
  Schedule schedule = Of(SchedulerType::kPolynomial);
  schedule.end = 1e-7 / kRate;
  schedule.power = 2;
  EXPECT_NEAR(schedule.At(1), 0.0005, kTolerance);
  EXPECT_NEAR(schedule.At(2), 0.001, kTolerance);
  EXPECT_NEAR(schedule.At(6), 0.000250075, kTolerance);
  EXPECT_NEAR(schedule.At(10), 1e-7, kTolerance);
}

TEST(ScheduleEndTest, CosineWithMinLr) {
  for (const SchedulerType type : {SchedulerType::kCosineWithMinLr, SchedulerType::kCosine}) {
    Schedule schedule = Of(type);
    schedule.end = 0.25;
    EXPECT_NEAR(schedule.At(1), 0.0005, kTolerance);
    EXPECT_NEAR(schedule.At(6), 0.000625, kTolerance);
    EXPECT_NEAR(schedule.At(10), 0.00025, kTolerance);
  }
}

TEST(ScheduleEndTest, WarmupStableDecay) {
  Schedule schedule = Of(SchedulerType::kWarmupStableDecay);
  schedule.end = 0.1;
  schedule.decay_steps = 4;
  schedule.decay = Linear;
  EXPECT_NEAR(schedule.At(0), 0.0001, kTolerance);
  EXPECT_NEAR(schedule.At(1), 0.00055, kTolerance);
  EXPECT_EQ(schedule.At(5), kRate);
  EXPECT_EQ(schedule.At(6), kRate);
  EXPECT_NEAR(schedule.At(7), 0.000775, kTolerance);
  EXPECT_NEAR(schedule.At(9), 0.000325, kTolerance);
  EXPECT_NEAR(schedule.At(10), 0.0001, kTolerance);
  schedule.decay = Cosine;
  EXPECT_NEAR(schedule.At(7), 0.0008681980515339464, kTolerance);
}

class ScheduleOptionsTest : public TinyRunTest {
 protected:
  // The schedule of 12 steps, 2 of them warm-up, with a highest rate of 0.01.
  Schedule Of(const char* type, const Change& change) const {
    TrainOptions options = Options("run");
    options.lr_scheduler_type = type;
    options.warmup_steps = 2;
    change(options);
    Context context(1);
    return PlanTraining(context, options).run->steps.schedule;
  }
  // The rates of transformers' function for each step, in 12 digits.
  void Expect(const char* type, const Change& change, const std::vector<double>& rates) const {
    const Schedule schedule = Of(type, change);
    ASSERT_EQ(std::ssize(rates), 12);
    for (std::int64_t step = 0; step < 12; ++step) {
      EXPECT_NEAR(schedule.At(step), rates[step], 1e-14) << type << " " << step;
    }
  }
};

// transformers rounds a ratio up, by which the only step of a run would have a rate of 0.
TEST_F(ScheduleOptionsTest, TheOnlyStepOfARunTrains) {
  const auto warmup = [&](std::int64_t steps, double ratio) {
    const Schedule schedule = Of("cosine", [&](TrainOptions& o) {
      o.max_steps = steps;
      o.warmup_steps = 0;
      o.warmup_ratio = ratio;
    });
    EXPECT_EQ(schedule.total_steps, steps);
    return schedule.warmup_steps;
  };
  EXPECT_EQ(warmup(1, 0.03), 0);
  EXPECT_EQ(warmup(1, 0.9), 0);
  EXPECT_EQ(warmup(2, 0.03), 1);
}

// transformers: lr_end, power, min_lr, min_lr_rate, num_decay_steps and decay_type, of its
// functions get_*_schedule.
TEST_F(ScheduleOptionsTest, GiveTheRatesOfTransformers) {
  const auto expect = [&](const char* type, const Change& change,
                          const std::vector<std::pair<std::int64_t, double>>& rates) {
    const Schedule schedule = Of(type, change);
    for (const auto& [step, rate] : rates) {
      EXPECT_NEAR(schedule.At(step), rate, 10 * kTolerance) << type << " " << step;
    }
  };
  expect("polynomial", [](TrainOptions&) {},
         {{1, 0.005}, {7, 0.00500005}, {11, 0.00100009}, {12, 1e-7}});
  const auto power = [](TrainOptions& o) {
    o.min_lr = 1e-3;
    o.lr_scheduler_power = 2;
  };
  expect("polynomial", power, {{7, 0.00325}, {11, 0.00109}, {12, 0.001}});
  expect("cosine_with_min_lr", [](TrainOptions& o) { o.min_lr = 1e-3; },
         {{5, 0.008145033635316129}, {7, 0.0055}, {12, 0.001}});
  expect("cosine_with_min_lr", [](TrainOptions& o) { o.min_lr_rate = 0.05; },
         {{5, 0.008041979948389247}, {12, 0.0005}});
  // A tenth of the run, rounded up: steps 10 and 11.
  expect("warmup_stable_decay", [](TrainOptions&) {},
         {{0, 0}, {2, 0.01}, {10, 0.01}, {11, 0.005}, {12, 0}});
  const auto root = [](TrainOptions& o) {
    o.min_lr_rate = 0.1;
    o.lr_decay_steps = 4;
    o.lr_decay_type = "1-sqrt";
  };
  expect("warmup_stable_decay", root,
         {{1, 0.0055}, {8, 0.01}, {9, 0.0055}, {10, 0.0036360389693210716}, {12, 0.001}});
}

TEST_F(ScheduleOptionsTest, WavesAndCycles) {
  const auto waves = [](double number) {
    return [number](TrainOptions& o) { o.lr_scheduler_waves = number; };
  };
  Expect("cosine", waves(1.5),
         {0, .005, .01, .00793892626146, .00345491502813, .000244717418524, .000954915028125, .005,
          .00904508497187, .00975528258148, .00654508497187, .00206107373854});
  const auto above = [](TrainOptions& o) {
    o.lr_scheduler_waves = 1.5;
    o.min_lr = 1e-3;
  };
  Expect("cosine_with_min_lr", above,
         {0, .005, .01, .00814503363532, .00410942352531, .00122024567667, .00185942352531, .0055,
          .00914057647469, .00977975432333, .00689057647469, .00285496636468});
  const auto last = [](TrainOptions& o) {
    o.lr_scheduler_waves = 1.5;
    o.lr_decay_steps = 6;
  };
  Expect("warmup_stable_decay", last, {0, .005, .01, .01, .01, .01, .01, .005, 0, .005, .01, .005});
  const auto cycles = [](double number) {
    return [number](TrainOptions& o) { o.lr_scheduler_cycles = number; };
  };
  Expect("cosine_with_restarts", cycles(2.5),
         {0, .005, .01, .00853553390593, .005, .00146446609407, .01, .00853553390593, .005,
          .00146446609407, .01, .00853553390593});
  Expect("cosine_with_restarts", cycles(0.5),
         {0, .005, .01, .00993844170298, .00975528258148, .00945503262094, .00904508497187,
          .00853553390593, .00793892626146, .0072699524987, .00654508497187, .0057821723252});
}

TEST_F(ScheduleOptionsTest, RatesOfTheWarmup) {
  const auto warmup = [](double rate) {
    return [rate](TrainOptions& o) {
      o.min_lr_rate = 0.1;
      o.warmup_steps = 4;
      o.lr_warmup_rate = rate;
    };
  };
  const std::vector<double> falls = {.01,   .0096574578963,  .00868198051534, .00722207544564,
                                     .0055, .00377792455436, .00231801948466, .0013425421037,
                                     .001};
  for (const auto& [rate, begin] : {std::pair(-1.0, std::vector{.0025, .005, .0075}),
                                    {0.2, {.002, .00466666666667, .00733333333333}},
                                    {0.0, {0, .00333333333333, .00666666666667}}}) {
    std::vector<double> rates = begin;
    rates.insert(rates.end(), falls.begin(), falls.end());
    Expect("cosine_warmup_with_min_lr", warmup(rate), rates);
  }
  const auto one = [](TrainOptions& o) {
    o.warmup_steps = 1;
    o.lr_warmup_rate = 0.3;
    o.lr_scheduler_waves = 1;
  };
  Expect(
      "cosine_warmup_with_min_lr", one,
      {.003, .00920626766416, .00707707506501, .00428842580863, .00172569633027, .000202535131928,
       .000202535131928, .00172569633027, .00428842580863, .00707707506501, .00920626766416, .01});
  const auto rises = [](const char* type) {
    return [type](TrainOptions& o) {
      o.warmup_steps = 3;
      o.lr_decay_steps = 4;
      o.lr_warmup_type = type;
    };
  };
  Expect("warmup_stable_decay", rises("cosine"),
         {0, .0025, .0075, .01, .01, .01, .01, .01, .01, .00853553390593, .005, .00146446609407});
  Expect("warmup_stable_decay", rises("1-sqrt"),
         {0, .00183503419072, .00422649730810, .01, .01, .01, .01, .01, .01, .00853553390593, .005,
          .00146446609407});
}

TEST_F(ScheduleOptionsTest, StepsOfTheParts) {
  const auto stable = [](std::int64_t steps, std::int64_t decay) {
    return [steps, decay](TrainOptions& o) {
      o.lr_stable_steps = steps;
      o.lr_decay_steps = decay;
    };
  };
  Expect("warmup_stable_decay", stable(3, 4),
         {0, .005, .01, .01, .01, .01, .00853553390593, .005, .00146446609407, 0, 0, 0});
  Expect("warmup_stable_decay", stable(0, 4),
         {0, .005, .01, .00853553390593, .005, .00146446609407, 0, 0, 0, 0, 0, 0});
  // The end of the run cuts the decay.
  Expect("warmup_stable_decay", stable(8, 6),
         {0, .005, .01, .01, .01, .01, .01, .01, .01, .01, .01, .00933012701892});
  const auto scale = [](std::int64_t steps) {
    return [steps](TrainOptions& o) { o.lr_scheduler_timescale = steps; };
  };
  Expect("inverse_sqrt", scale(5),
         {0, .005, .01, .00912870929175, .00845154254729, .00790569415042, .007453559925,
          .00707106781187, .00674199862463, .00645497224368, .00620173672946, .00597614304667});
  Expect("inverse_sqrt", scale(0),
         {0, .005, .01, .00816496580928, .00707106781187, .00632455532034, .0057735026919,
          .00534522483825, .005, .00471404520791, .004472135955, .00426401432711});
}

}  // namespace
}  // namespace qlora
