// Runs whose loss rises: the rule, and what such a run leaves.
#include "step/loss_rise.h"

#include <gmock/gmock.h>

#include "step/schedule.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

using testing::HasSubstr;

// Losses whose median and median deviation are these.
LossSpikes Recent(double median, double deviation, std::int64_t count = 20) {
  LossSpikes recent;
  for (std::int64_t i = 0; i < count; ++i) {
    recent.newest.push_back(median + (i % 2 == 0 ? deviation : -deviation));
  }
  recent.count = count;
  return recent;
}

TEST(LossRise, TheStartIsTheWarmup) {
  EXPECT_EQ(StartSteps(0), 1);
  EXPECT_EQ(StartSteps(7), 7);
  EXPECT_EQ(StartSteps(500), 20);
  LossStart start;
  for (const double loss : {3.0, 2.0, 1.0, 9.0}) start.Add(loss, 3);
  EXPECT_EQ(start.count, 3);
  EXPECT_DOUBLE_EQ(start.mean, 2);
}

TEST(LossRise, FarAboveTheStart) {
  const LossStart start = {.mean = 2, .count = 3};
  EXPECT_TRUE(HasRisen(start, Recent(2.6, 0.1)));
  EXPECT_FALSE(HasRisen(start, Recent(2.4, 0.1))) << "less than 0.5";
  EXPECT_FALSE(HasRisen(start, Recent(2.6, 0.4))) << "within the scatter";
  EXPECT_FALSE(HasRisen(start, Recent(1.0, 0.1)));
  EXPECT_FALSE(HasRisen(start, Recent(8.0, 0.1, 9))) << "too few steps to tell";
  EXPECT_FALSE(HasRisen({.mean = 4, .count = 1}, Recent(4.7, 0.1))) << "less than a fifth";
  EXPECT_FALSE(HasRisen({.mean = 0.01, .count = 1}, Recent(0.3, 0.01))) << "known by heart";
  EXPECT_FALSE(HasRisen({}, Recent(5, 0.1))) << "the start is not known";
}

TEST(LossRise, AViolentRiseIsSeen) {
  // One loss of 20 far above the others would hide the rise in a mean deviation.
  LossStart start;
  LossSpikes recent;
  std::vector<int> spikes;
  for (int step = 1; step <= 30; ++step) {
    const double loss = step <= 2 ? 1.4 : step == 3 ? 20.4 : 3.7 + 0.1 * (step % 3);
    if (recent.Add(loss)) spikes.push_back(step);
    start.Add(loss, 1);
  }
  EXPECT_TRUE(HasRisen(start, recent));
  EXPECT_EQ(spikes, std::vector<int>{3});
  EXPECT_EQ(std::ssize(recent.newest), LossSpikes::kNewest);
  EXPECT_DOUBLE_EQ(MedianOf({5, 1, 2, 100}).median, 3.5);
  EXPECT_DOUBLE_EQ(MedianOf({5, 1, 2, 100, 3}).deviation, 2);
}

TEST(LossRise, ALearnerIsNotSuspected) {
  LossStart start;
  LossSpikes recent;
  for (int step = 0; step < 200; ++step) {
    // Steps of a few tokens scatter widely around a loss that falls slowly.
    const double loss = 2 - 0.002 * step + (step % 3 - 1) * 0.8;
    recent.Add(loss);
    start.Add(loss, StartSteps(6));
    EXPECT_FALSE(HasRisen(start, recent)) << step;
  }
}

class LossRiseTest : public TinyRunTest {
 protected:
  class Rises : public TrainObserver {
   public:
    explicit Rises(std::int64_t stop_after = -1) : stop_after_(stop_after) {}
    void OnStep(const StepReport& report) override {
      step_ = report.step;
      if (report.risen) steps.push_back(report.step);
    }
    bool ShouldStop() override { return step_ == stop_after_; }
    std::vector<std::int64_t> steps;

   private:
    std::int64_t stop_after_;
    std::int64_t step_ = 0;
  };

  // Learns the data by heart, and then goes on with a rate that ruins what was learned.
  TrainOptions Ruin() const {
    std::string lines;
    for (int i = 0; i < 8; ++i) lines += "{\"text\": \"Once upon a time there were bears.\"}\n";
    WriteTextFile(root_ / "data.jsonl", lines);
    TrainOptions options = Options("learned");
    options.data.dataset = {root_ / "data.jsonl"};
    options.max_steps = 60;
    options.learning_rate = 3e-2;
    options.lora_dropout = 0;
    Run(options);
    options.adapter = options.output_dir;
    options.output_dir = root_ / "ruined";
    options.learning_rate = 5;
    options.max_steps = 24;
    return options;
  }
};

TEST_F(LossRiseTest, IsReportedAndTheAdapterIsSaved) {
  const TrainOptions options = Ruin();
  Context context(2);
  Rises whole;
  const RunSummary summary = PlanAndTrain(context, options, whole);
  EXPECT_TRUE(summary.diverged);
  EXPECT_THAT(summary.divergence, HasSubstr("the loss rose from "));
  EXPECT_THAT(summary.divergence, HasSubstr("learning_rate"));
  EXPECT_EQ(summary.steps, 24);
  EXPECT_TRUE(fs::exists(root_ / "ruined" / "adapter_model.safetensors"));
  ASSERT_FALSE(whole.steps.empty());
  EXPECT_GE(whole.steps.front(), 10);

  // A resumed run knows the start of the run, and one from an older checkpoint ends as well.
  TrainOptions resumed = options;
  resumed.output_dir = root_ / "resumed";
  Rises first(12);
  EXPECT_FALSE(PlanAndTrain(context, resumed, first).diverged)
      << "an interrupted run is not judged";
  resumed.resume_from_checkpoint = "auto";
  fs::copy(root_ / "resumed", root_ / "older", fs::copy_options::recursive);
  Rises rest;
  EXPECT_EQ(PlanAndTrain(context, resumed, rest).divergence.substr(0, 40),
            summary.divergence.substr(0, 40));
  std::vector<std::int64_t> both = first.steps;
  both.insert(both.end(), rest.steps.begin(), rest.steps.end());
  EXPECT_EQ(both, whole.steps);

  resumed.output_dir = root_ / "older";
  const fs::path state = root_ / "older" / "checkpoint-12" / "trainer_state.json";
  Json json = ReadJsonFile(state);
  ASSERT_EQ(json.erase("loss_start"), 1u);
  ASSERT_EQ(json.erase("loss_start_count"), 1u);
  ASSERT_EQ(json.erase("loss_newest"), 1u);
  ASSERT_EQ(json.erase("state_crc32"), 1u);
  WriteTextFile(state, json.dump());
  Rises older;
  EXPECT_EQ(PlanAndTrain(context, resumed, older).steps, 24);
}

TEST_F(LossRiseTest, GoodRunsAreNotSuspected) {
  Context context(2);
  Rises rises;
  const RunSummary summary = PlanAndTrain(context, Options("run"), rises);
  EXPECT_FALSE(summary.diverged);
  EXPECT_EQ(summary.divergence, "");
  EXPECT_TRUE(rises.steps.empty());
}

TEST(WarnOfLowRatesTest, WhereWarmupIsAThirdOfTheRunOrMore) {
  TrainOptions options;
  const auto warning = [&](std::int64_t warmup, std::int64_t total) {
    return WarnOfLowRates(options,
                          {.learning_rate = 1e-3, .warmup_steps = warmup, .total_steps = total});
  };
  EXPECT_EQ(warning(0, 1), "");
  EXPECT_EQ(warning(3, 10), "");
  EXPECT_EQ(warning(1, 4), "");
  EXPECT_THAT(warning(1, 3), HasSubstr("warm-up takes 1 of 3 steps; lower"));
  EXPECT_THAT(warning(1, 2), HasSubstr("warm-up takes 1 of 2 steps; lower"));
  EXPECT_THAT(warning(6, 10), HasSubstr("warm-up takes 6 of 10 steps; lower warmup_ratio"));
  options.warmup_steps = 100;
  EXPECT_THAT(warning(100, 10), HasSubstr("10 of 10 steps, so the learning rate never reaches its "
                                          "peak; lower warmup_steps, or train for more steps"));
}

TEST(WarnOfLowRatesTest, WhereNothingIsTrained) {
  const auto warning = [](const Schedule& schedule) {
    return WarnOfLowRates(TrainOptions(), schedule);
  };
  const char* const nothing = "the run trains nothing";
  EXPECT_THAT(warning({.learning_rate = 0, .total_steps = 1000}),
              AllOf(HasSubstr("learning_rate is 0"), HasSubstr(nothing)));
  // The first step of a warm-up has a rate of 0.
  for (const SchedulerType type :
       {SchedulerType::kLinear, SchedulerType::kWarmupStableDecay, SchedulerType::kInverseSqrt}) {
    EXPECT_THAT(warning({.type = type, .learning_rate = 1, .warmup_steps = 1, .total_steps = 1}),
                HasSubstr(nothing));
    EXPECT_THAT(warning({.type = type, .learning_rate = 1, .warmup_steps = 9, .total_steps = 2}),
                Not(HasSubstr(nothing)));
  }
  EXPECT_EQ(warning({.learning_rate = 1, .total_steps = 1}), "");
}

TEST(WarnOfNoCheckpointTest, OfALongRunThatSavesOneAtItsEndAlone) {
  TrainOptions options;
  const auto warning = [&](std::int64_t total) {
    return WarnOfNoCheckpoint(options, {.total_steps = total});
  };
  EXPECT_EQ(warning(200), "");
  EXPECT_THAT(warning(201), HasSubstr("a crash would lose the steps until then: --save_steps N"));
  options.save_steps = 300;
  EXPECT_THAT(warning(300), HasSubstr("no checkpoint is saved before the end"));
  EXPECT_EQ(warning(301), "");
  options.save_steps = 0;
  options.load_best_model_at_end = true;
  EXPECT_EQ(warning(1000), "");
}

}  // namespace
}  // namespace qlora
