// A run that is stopped and goes on ends in the same bits as one that never stopped, on any number
// of threads.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "io/json.h"
#include "qlora/error.h"
#include "qlora/train.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = fs::path(QLORA_SOURCE_DIR) / "tests" / "golden";

class StopAfter : public TrainObserver {
 public:
  explicit StopAfter(std::int64_t steps) : steps_(steps) {}
  void OnStep(const StepReport& report) override { step_ = report.step; }
  bool ShouldStop() override { return step_ == steps_; }

 private:
  std::int64_t steps_;
  std::int64_t step_ = 0;
};

// A folder of its own for each test, removed afterwards.
class ResumeTest : public testing::Test {
 protected:
  ResumeTest()
      : root_(fs::path(testing::TempDir()) /
              ("qlora-resume-" +
               std::string(testing::UnitTest::GetInstance()->current_test_info()->name()))) {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~ResumeTest() override { fs::remove_all(root_); }

  TrainOptions Options(const std::string& name) const {
    TrainOptions options;
    options.model_name_or_path = kGolden / "llama-tiny";
    options.output_dir = root_ / name;
    options.data.dataset = {kGolden / "train-20" / "data.jsonl"};
    options.data.max_length = 64;
    options.lora_r = 4;
    options.lora_dropout = 0.1;
    options.learning_rate = 1e-2;
    options.per_device_train_batch_size = 2;
    options.gradient_accumulation_steps = 3;
    options.max_steps = 12;  // two epochs and a half-window
    return options;
  }

  static void Run(const TrainOptions& options, std::int64_t stop_after = -1, int threads = 2) {
    Context context(threads);
    StopAfter observer(stop_after);
    const RunSummary summary = Train(context, options, observer);
    EXPECT_EQ(summary.interrupted, stop_after >= 0);
  }

  std::string Adapter(const std::string& name) const {
    return ReadTextFile(root_ / name / "adapter_model.safetensors");
  }
  // What the steps computed, without times and memory.
  std::vector<std::string> Steps(const std::string& name) const {
    std::vector<std::string> steps;
    std::ifstream file(root_ / name / "train_log.jsonl");
    for (std::string line; std::getline(file, line);) {
      Json json = Json::parse(line);
      for (const char* key : {"tokens_per_second", "memory", "elapsed"}) json.erase(key);
      steps.push_back(json.dump());
    }
    return steps;
  }

  fs::path root_;
};

TEST_F(ResumeTest, AtEveryStep) {
  Run(Options("whole"));
  for (const std::int64_t stop : {1, 4, 7, 11}) {
    TrainOptions options = Options("parts" + std::to_string(stop));
    Run(options, stop);
    options.resume_from_checkpoint = "auto";
    Run(options);
    const std::string name = fs::path(options.output_dir).filename();
    EXPECT_EQ(Steps("whole"), Steps(name)) << "stopped after " << stop;
    EXPECT_TRUE(Adapter("whole") == Adapter(name)) << "stopped after " << stop;
  }
}

TEST_F(ResumeTest, WithPackingFromASavedStep) {
  const auto packed = [&](const std::string& name) {
    TrainOptions options = Options(name);
    options.data.packing = true;
    options.per_device_train_batch_size = 1;
    options.save_steps = 5;
    return options;
  };
  Run(packed("whole"));
  TrainOptions options = packed("parts");
  Run(options, 8);  // leaves checkpoint-5 and checkpoint-8
  options.resume_from_checkpoint = options.output_dir + "/checkpoint-5";
  Run(options);
  EXPECT_EQ(Steps("whole"), Steps("parts"));
  EXPECT_TRUE(Adapter("whole") == Adapter("parts"));
}

TEST_F(ResumeTest, SameBitsOnAnyNumberOfThreads) {
  for (const char* compute : {"float32", "bfloat16"}) {
    std::string first;
    for (const int threads : {1, 2, 4}) {
      TrainOptions options = Options(std::string(compute) + std::to_string(threads));
      options.compute_dtype = compute;
      options.max_steps = 4;
      Run(options, -1, threads);
      const std::string adapter = Adapter(fs::path(options.output_dir).filename());
      if (first.empty()) first = adapter;
      EXPECT_TRUE(first == adapter) << compute << " on " << threads << " threads";
    }
  }
}

TEST_F(ResumeTest, RefusesOtherOptions) {
  TrainOptions options = Options("run");
  Run(options, 3);
  options.resume_from_checkpoint = "auto";
  options.learning_rate = 5e-3;
  try {
    Run(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
    EXPECT_NE(std::string(error.what()).find("learning_rate"), std::string::npos) << error.what();
  }
}

TEST_F(ResumeTest, RefusesToWriteOverARun) {
  TrainOptions options = Options("run");
  options.max_steps = 1;
  Run(options);
  EXPECT_THROW(Run(options), Error);
  options.overwrite_output_dir = true;
  Run(options);
}

TEST_F(ResumeTest, KeepsTheNewestCheckpoints) {
  TrainOptions options = Options("run");
  options.save_steps = 2;
  options.save_total_limit = 2;
  Run(options);
  EXPECT_FALSE(fs::exists(root_ / "run" / "checkpoint-8"));
  EXPECT_TRUE(fs::exists(root_ / "run" / "checkpoint-10"));
  EXPECT_TRUE(fs::exists(root_ / "run" / "checkpoint-12"));
}

TEST_F(ResumeTest, RefusesWhatDoesNotFit) {
  TrainOptions options = Options("run");
  options.max_memory = "1MB";
  try {
    Run(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
  }
  EXPECT_FALSE(fs::exists(root_ / "run"));
}

}  // namespace
}  // namespace qlora
