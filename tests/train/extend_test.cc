// A run that ends leaves its moments, and is trained further as if it had always been longer.
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/run_info.h"
#include "qlora/error.h"
#include "step/schedule.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

class ExtendTest : public TinyRunTest {
 protected:
  TrainOptions StepsOf(const std::string& name, const char* schedule, std::int64_t steps) const {
    TrainOptions options = Options(name);
    options.lr_scheduler_type = schedule;
    options.max_steps = steps;
    return options;
  }
  // Trains `options` and then with `change`.
  static void RunTwice(TrainOptions options, const std::function<void(TrainOptions&)>& change) {
    Run(options);
    options.resume_from_checkpoint = "auto";
    change(options);
    Run(options);
  }
  std::vector<double> Rates(const std::string& name) const {
    std::vector<double> rates;
    for (const std::string& line : Steps(name)) {
      rates.push_back(Json::parse(line).at("learning_rate").get<double>());
    }
    return rates;
  }
};

TEST_F(ExtendTest, AConstantRateGivesTheBitsOfALongRun) {
  Run(StepsOf("whole", "constant", 8));
  RunTwice(StepsOf("parts", "constant", 4), [](TrainOptions& o) { o.max_steps = 8; });
  EXPECT_EQ(Steps("whole"), Steps("parts"));
  EXPECT_TRUE(Adapter("whole") == Adapter("parts"));
}

TEST_F(ExtendTest, MoreEpochsContinueTheOrderOfTheData) {
  const auto epochs = [&](const std::string& name, double count) {
    TrainOptions options = StepsOf(name, "constant", -1);
    options.num_train_epochs = count;
    return options;
  };
  Run(epochs("whole", 3));
  RunTwice(epochs("parts", 1), [](TrainOptions& o) { o.num_train_epochs = 3; });
  EXPECT_EQ(Steps("whole"), Steps("parts"));
  EXPECT_TRUE(Adapter("whole") == Adapter("parts"));
}

// As the Trainer of transformers does it: the rates of the new schedule from the next step on.
TEST_F(ExtendTest, OtherRatesAreThoseOfTheNewSchedule) {
  for (const char* type : {"linear", "cosine"}) {
    SCOPED_TRACE(type);
    TrainOptions options = StepsOf(std::string(type) + "-parts", type, 4);
    options.warmup_ratio = 0.25;
    RunTwice(options, [](TrainOptions& o) { o.max_steps = 8; });
    const std::vector<double> rates = Rates(std::string(type) + "-parts");
    ASSERT_EQ(rates.size(), 8u);
    const Schedule before = {ParseSchedulerType(type), options.learning_rate, 1, 4};
    const Schedule now = {ParseSchedulerType(type), options.learning_rate, 2, 8};
    for (std::int64_t step = 0; step < 8; ++step) {
      EXPECT_EQ(rates[step], (step < 4 ? before : now).At(step)) << "step " << step + 1;
    }
  }
}

TEST_F(ExtendTest, ThePlanTellsWhereTheRunStands) {
  TrainOptions options = StepsOf("run", "cosine", 4);
  Context context(1);
  EXPECT_FALSE(PlanTraining(context, options).resume);
  Run(options, 2);
  options.resume_from_checkpoint = "auto";
  const auto resume = [&] { return PlanTraining(context, options).resume.value(); };
  EXPECT_EQ(resume().step, 2);
  EXPECT_FALSE(resume().is_end || resume().is_complete);
  Run(options);
  EXPECT_EQ(resume().step, 4);
  EXPECT_TRUE(resume().is_end && resume().is_complete);
  options.max_steps = 6;
  EXPECT_EQ(resume().total_steps, 4);
  EXPECT_FALSE(resume().is_end);
  options.max_steps = 3;
  try {
    resume();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
    EXPECT_NE(std::string(error.what()).find("ask for 4 or more"), std::string::npos);
  }
}

// Between its last checkpoint and its result a run is not complete, though an earlier result is
// there.
TEST_F(ExtendTest, AKillBeforeTheResultIsMadeUpFor) {
  Run(StepsOf("whole", "constant", 6));
  TrainOptions options = StepsOf("parts", "constant", 3);
  Run(options);
  const std::string early = Adapter("parts");
  options.max_steps = 6;
  options.resume_from_checkpoint = "auto";
  Run(options);
  WriteTextFile(root_ / "parts" / "adapter_model.safetensors", early);
  Json info = ReadJsonFile(root_ / "parts" / kRunInfo);
  EXPECT_EQ(info.at(kFinishedStep), 6);
  info.erase(kFinishedStep);
  WriteTextFile(root_ / "parts" / kRunInfo, info.dump());
  Context context(1);
  EXPECT_FALSE(PlanTraining(context, options).resume->is_complete);
  Run(options);
  EXPECT_TRUE(Adapter("whole") == Adapter("parts"));
}

TEST_F(ExtendTest, TheLimitCountsTheLastCheckpoint) {
  TrainOptions options = StepsOf("run", "constant", 5);
  options.save_steps = 2;
  options.save_total_limit = 1;
  Run(options);
  EXPECT_EQ(ListCheckpoints(options.output_dir),
            std::vector<fs::path>{root_ / "run" / "checkpoint-5"});
}

TEST_F(ExtendTest, EarlyStoppingContinuesWithMorePatience) {
  TrainOptions options = StepsOf("run", "constant", 40);
  options.data.val_set_size = 6;
  options.eval_steps = 2;
  options.lora_dropout = 0;
  options.learning_rate = 3e-2;
  options.early_stopping_patience = 1;
  options.load_best_model_at_end = true;
  Run(options);
  options.resume_from_checkpoint = "auto";
  Context context(1);
  const TrainPlan plan = PlanTraining(context, options);
  EXPECT_TRUE(plan.resume->is_end && plan.resume->is_complete);
  EXPECT_LT(plan.resume->step, plan.total_steps);
  options.early_stopping_patience = 3;
  EXPECT_FALSE(PlanTraining(context, options).resume->is_end);
  Run(options);
  EXPECT_GT(std::ssize(Steps("run")), plan.resume->step);
}

TEST_F(ExtendTest, SamplesOfTheFirstResultStay) {
  TrainOptions options = StepsOf("run", "constant", 2);
  options.sample_prompts = {"Once, upon a time"};
  options.sample_max_new_tokens = 4;
  RunTwice(options, [](TrainOptions& o) { o.max_steps = 4; });
  std::vector<std::int64_t> steps;
  std::ifstream file(root_ / "run" / "samples.jsonl");
  for (std::string line; std::getline(file, line);) {
    steps.push_back(Json::parse(line).at("step").get<std::int64_t>());
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{0, 2, 4}));
}

TEST_F(ExtendTest, AMovedModelAndMovedDataAreTheSame) {
  fs::copy(kGolden / "llama-tiny", root_ / "model");
  fs::copy(kGolden / "train-20" / "data.jsonl", root_ / "data.jsonl");
  Run(Options("whole"));
  TrainOptions options = Options("parts");
  Run(options, 5);
  options.resume_from_checkpoint = "auto";
  options.data.dataset = {root_ / "data.jsonl"};
  options.model_name_or_path = root_ / "model";
  Run(options);
  EXPECT_EQ(Steps("whole"), Steps("parts"));
}

TEST_F(ExtendTest, AnotherModelOrOtherDataAreRefused) {
  TrainOptions options = Options("run");
  Run(options, 2);
  options.resume_from_checkpoint = "auto";
  const auto refusal = [&](const TrainOptions& other) {
    try {
      Run(other);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
      return std::string(error.what());
    }
    return std::string();
  };
  TrainOptions other = options;
  fs::copy(kGolden / "llama-tiny", root_ / "model");
  std::string weights = ReadTextFile(root_ / "model" / "model.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, weights.data(), sizeof(header));
  weights[sizeof(header) + header] ^= 1;  // the first value of a tensor
  WriteTextFile(root_ / "model" / "model.safetensors", weights);
  other.model_name_or_path = root_ / "model";
  EXPECT_NE(refusal(other).find("the weights of model_name_or_path"), std::string::npos);
  other = options;
  WriteTextFile(root_ / "data.jsonl", "{\"text\": \"Once upon a time.\"}\n");
  other.data.dataset = {root_ / "data.jsonl"};
  EXPECT_NE(refusal(other).find("the samples of dataset"), std::string::npos);
  other = options;
  other.data.dataset[0] += ":2";
  EXPECT_NE(refusal(other).find("dataset_weights"), std::string::npos);
}

}  // namespace
}  // namespace qlora
