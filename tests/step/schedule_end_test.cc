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
};

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

}  // namespace
}  // namespace qlora
