// Short runs on a tiny model, for tests of training.
#ifndef QLORA_TESTS_TRAIN_TINY_RUN_H_
#define QLORA_TESTS_TRAIN_TINY_RUN_H_

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/file.h"
#include "io/json.h"
#include "qlora/error.h"
#include "qlora/train.h"
#include "temporary_folder.h"
#include "test_build.h"

namespace qlora {

namespace fs = std::filesystem;

inline const fs::path kGolden = SourceDir() / "tests" / "golden";

inline RunSummary PlanAndTrain(Context& context, const TrainOptions& options,
                               TrainObserver& observer) {
  return Train(context, PlanTraining(context, options), observer);
}

// A change of the options of a run.
using Change = std::function<void(TrainOptions&)>;

// The preset qlora-paper, with the size and length of a tiny run.
inline void UsePaperPreset(TrainOptions& options) {
  OptionTable table;
  options.Declare(table);
  for (const char* key : {"lora_r", "lora_dropout", "learning_rate", "max_steps"}) {
    table.Find(key)->set = true;
  }
  table.Set("preset", "qlora-paper", "test");
  options.Complete(table);
}

// Ends the run after a step.
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
class TinyRunTest : public testing::Test {
 protected:
  static void ExpectRefused(const TrainOptions& options, const std::string& why,
                            ErrorCode code = ErrorCode::kInvalidInput) {
    try {
      Run(options);
      ADD_FAILURE() << "not refused: " << why;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  }
  TrainOptions Options(const std::string& name) const {
    TrainOptions options;
    options.model_name_or_path = kGolden / "llama-tiny";
    options.output_dir = root_ / name;
    options.data.dataset = {kGolden / "train-20" / "data.jsonl"};
    options.data.reading.max_length = 64;
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
    const RunSummary summary = PlanAndTrain(context, options, observer);
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
      for (const char* key : {"tokens_per_second", "limit_share", "memory", "elapsed", "ranks"})
        json.erase(key);
      steps.push_back(json.dump());
    }
    return steps;
  }

  TemporaryFolder folder_;
  fs::path root_ = folder_.path();
};

}  // namespace qlora

#endif  // QLORA_TESTS_TRAIN_TINY_RUN_H_
