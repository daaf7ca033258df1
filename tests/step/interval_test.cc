// How often a run saves and evaluates.
#include "step/interval.h"

#include <gtest/gtest.h>

#include <vector>

#include "plan/run/prepared_run.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

// The steps of an epoch of `steps` after which it is time.
std::vector<std::int64_t> DueIn(const Interval& every, std::int64_t steps) {
  std::vector<std::int64_t> due;
  for (std::int64_t step = 1; step <= steps; ++step) {
    if (IsDue(every, {step, step % steps, steps})) due.push_back(step);
  }
  return due;
}

TEST(IntervalTest, PartsOfAnEpochEndWithIt) {
  EXPECT_EQ(DueIn({.per_epoch = 1}, 10), std::vector<std::int64_t>{10});
  EXPECT_EQ(DueIn({.per_epoch = 4}, 10), (std::vector<std::int64_t>{3, 5, 8, 10}));
  EXPECT_EQ(DueIn({.per_epoch = 9}, 3), (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(DueIn({.steps = 4}, 10), (std::vector<std::int64_t>{4, 8}));
  EXPECT_EQ(DueIn({}, 10), std::vector<std::int64_t>{});
}

using StepPlaceTest = TinyRunTest;

TEST_F(StepPlaceTest, TheLastWindowOfAnEpochMayBeShort) {
  TrainOptions options = Options("run");
  options.per_device_train_batch_size = 4;
  options.gradient_accumulation_steps = 4;
  Context context(1);
  const TrainPlan plan = PlanTraining(context, options);
  BatchStream stream(plan.run->data->train, plan.run->data->stream);
  ASSERT_EQ(stream.MicroBatchesIn(0), 10);
  // Windows of 4, 4 and 2; after the last one the epoch is over.
  const std::int64_t expected[] = {1, 2, 0, 1};
  for (std::int64_t step = 1; step <= 4; ++step) {
    const StepPlace place = PlaceOf(step, stream, stream.PlanWindow(4).end, 4);
    EXPECT_EQ(place.step, step);
    EXPECT_EQ(place.step_of_epoch, expected[step - 1]) << step;
    EXPECT_EQ(place.steps_of_epoch, 3) << step;
    EXPECT_EQ(IsDue({.per_epoch = 1}, place), step == 3) << step;
  }
}

TEST(IntervalTest, AShareOfTheRunIsRoundedUp) {
  TrainOptions options;
  options.save_ratio = 0.1;
  EXPECT_EQ(SaveInterval(options, 25).steps, 3);
  EXPECT_EQ(SaveInterval(options, 5).steps, 1);
  EXPECT_EQ(EvalInterval(options, 25).per_epoch, 1) << "as before";
  options.eval_steps = 7;
  EXPECT_EQ(EvalInterval(options, 25).steps, 7);
  EXPECT_EQ(EvalInterval(options, 25).per_epoch, 0);
}

TEST(IntervalTest, HowManyTimesAtMost) {
  EXPECT_EQ(TimesIn({.steps = 4}, 10, 5), 2);
  EXPECT_EQ(TimesIn({.per_epoch = 2}, 20, 10), 4);
  EXPECT_EQ(TimesIn({.per_epoch = 100}, 20, 10), 20);
  EXPECT_EQ(TimesIn({}, 20, 10), 0);
}

}  // namespace
}  // namespace qlora
