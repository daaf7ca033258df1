// Properties of runs on decisions: what changes rounding alone, and what changes no bit.
#include <cmath>

#include "train/tiny_run.h"

namespace qlora {
namespace {

class DecisionRunTest : public TinyRunTest {
 protected:
  TrainOptions Decisions(const std::string& name) const {
    TrainOptions options = Options(name);
    options.model_name_or_path = kGolden / "decision" / "tiny-qwen3";
    options.data.dataset = {kGolden / "decision" / "qwen3" / "train.jsonl"};
    options.data.reading.max_length = 0;
    options.data.reading.decision.decision_template = "plain";
    options.compute_dtype = "float32";
    options.overwrite_output_dir = true;
    options.lora_dropout = 0;
    options.max_steps = 4;
    return options;
  }
  void ExpectNear(const std::string& a, const std::string& b) const {
    const std::vector<std::string> left = Steps(a);
    const std::vector<std::string> right = Steps(b);
    ASSERT_EQ(left.size(), right.size());
    for (std::size_t i = 0; i < left.size(); ++i) {
      for (const char* key : {"loss", "grad_norm", "brier"}) {
        const double value = Json::parse(left[i])[key].get<double>();
        EXPECT_NEAR(value, Json::parse(right[i])[key].get<double>(), 2e-5 * (1 + std::abs(value)))
            << key << " of step " << i + 1;
      }
    }
  }
};

TEST_F(DecisionRunTest, SharingAndTheSplitChangeRoundingAlone) {
  Run(Decisions("shared"));
  TrainOptions options = Decisions("apart");
  options.data.reading.decision.share_prefix = false;
  Run(options);
  ExpectNear("shared", "apart");
  options = Decisions("split");
  options.per_device_train_batch_size = 1;
  options.gradient_accumulation_steps = 6;
  Run(options);
  ExpectNear("shared", "split");
}

TEST_F(DecisionRunTest, EvaluationsHaveNoLabelSmoothing) {
  struct Losses : TrainObserver {
    void OnEval(std::int64_t step, const EvalReport& report) override {
      if (step == 0) first = report.loss;
    }
    void OnStep(const StepReport& report) override { of_step = report.loss; }
    double first = 0;
    double of_step = 0;
  };
  const auto losses = [&](const std::string& name, double smoothing) {
    TrainOptions options = Decisions(name);
    options.max_steps = 1;
    options.data.val_set_size = 6;
    options.eval_on_start = true;
    options.label_smoothing_factor = smoothing;
    Context context(2);
    Losses observer;
    PlanAndTrain(context, options, observer);
    return observer;
  };
  const Losses plain = losses("plain", 0);
  const Losses smooth = losses("smooth", 0.5);
  EXPECT_GT(plain.first, 0);
  EXPECT_EQ(plain.first, smooth.first);
  EXPECT_NE(plain.of_step, smooth.of_step);
}

// All records are a step, in another order where they are packed.
TEST_F(DecisionRunTest, PackingChangesRoundingAlone) {
  TrainOptions options = Decisions("whole");
  options.per_device_train_batch_size = 40;
  options.gradient_accumulation_steps = 1;
  options.data.reading.decision.option_order = "given";
  Run(options);
  options.output_dir = root_ / "packed";
  options.data.packing = true;
  Run(options);
  ExpectNear("whole", "packed");
}

TEST_F(DecisionRunTest, ThreadsAndRestartsChangeNoBit) {
  TrainOptions options = Decisions("whole");
  Run(options);
  options.output_dir = root_ / "threads";
  Run(options, -1, 1);
  EXPECT_EQ(Steps("whole"), Steps("threads"));
  EXPECT_TRUE(Adapter("whole") == Adapter("threads"));
  options = Decisions("parts");
  options.overwrite_output_dir = false;
  options.resume_from_checkpoint = "auto";
  for (const int step : {1, 3}) Run(options, step);
  Run(options);
  EXPECT_EQ(Steps("whole"), Steps("parts"));
  EXPECT_TRUE(Adapter("whole") == Adapter("parts"));
}

}  // namespace
}  // namespace qlora
