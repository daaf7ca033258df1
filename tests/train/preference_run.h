// Runs on preferences over the golden model (tests/golden/preference), as tests share them.
#ifndef QLORA_TESTS_TRAIN_PREFERENCE_RUN_H_
#define QLORA_TESTS_TRAIN_PREFERENCE_RUN_H_

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "io/json.h"
#include "qlora/train.h"
#include "temporary_folder.h"
#include "test_build.h"

namespace qlora {

inline std::filesystem::path PreferenceGoldens() {
  return SourceDir() / "tests" / "golden" / "preference";
}

inline std::vector<Json> ReadJsonLines(const std::filesystem::path& path) {
  std::vector<Json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

// Twenty steps over the golden pairs, in their order, from a golden adapter.
inline TrainOptions PreferenceOptions(const std::filesystem::path& output_dir,
                                      const std::string& adapter = "adapter_init") {
  TrainOptions options;
  options.model_name_or_path = PreferenceGoldens() / "stories260K-hf";
  options.adapter = PreferenceGoldens() / adapter;
  options.output_dir = output_dir;
  options.overwrite_output_dir = true;
  options.compute_dtype = "float32";
  options.quantization.bnb_4bit_use_double_quant = false;
  options.data.dataset = {PreferenceGoldens() / "pairs.jsonl"};
  options.data.shuffle = false;
  options.lora_r = 8;
  options.lora_alpha = 16;
  options.per_device_train_batch_size = 4;
  options.gradient_accumulation_steps = 1;
  options.max_steps = 20;
  options.learning_rate = 1e-3;
  options.lr_scheduler_type = "constant";
  options.warmup_ratio = 0;
  options.preference.preference_loss = {"sigmoid"};
  return options;
}

// The lines of train_log.jsonl after a run.
inline std::vector<Json> RunPreference(const TrainOptions& options, int threads = 2) {
  Context context(threads);
  TrainObserver observer;
  Train(context, PlanTraining(context, options), observer);
  return ReadJsonLines(std::filesystem::path(options.output_dir) / "train_log.jsonl");
}

// Short runs into a folder of the test.
class PreferenceRunTest : public testing::Test {
 protected:
  TrainOptions Options(const std::string& name) const {
    TrainOptions options = PreferenceOptions(folder_ / name);
    options.max_steps = 3;
    return options;
  }
  TrainOptions Kto(const std::string& name) const {
    TrainOptions options = Options(name);
    options.data.dataset = {PreferenceGoldens() / "unpaired.jsonl"};
    options.per_device_train_batch_size = 8;
    options.preference.preference_loss = {"kto"};
    return options;
  }

  TemporaryFolder folder_;
};

}  // namespace qlora

#endif  // QLORA_TESTS_TRAIN_PREFERENCE_RUN_H_
