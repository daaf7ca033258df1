// Twenty steps of training against a float64 PyTorch loop (tests/golden/train-20).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "io/json.h"
#include "qlora/train.h"
#include "temporary_folder.h"
#include "test_build.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

const fs::path kGoldenRun = SourceDir() / "tests" / "golden";

std::vector<Json> ReadLines(const fs::path& path) {
  std::vector<Json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

TrainOptions GoldenOptions(bool four_bit, const fs::path& output_dir) {
  TrainOptions options;
  options.model_name_or_path = kGoldenRun / "llama-tiny";
  options.adapter = kGoldenRun / "llama-tiny" / "adapter";
  options.output_dir = output_dir;
  options.overwrite_output_dir = true;
  options.load_in_4bit = four_bit;
  options.compute_dtype = "float32";
  options.data.dataset = {kGoldenRun / "train-20" / "data.jsonl"};
  const Json recipe = ReadJsonFile(kGoldenRun / "train-20" / "recipe.json");
  OptionTable table;
  options.Declare(table);
  for (const auto& [key, value] : recipe.items()) {
    table.Set(key, value.is_string() ? value.get<std::string>() : value.dump(), "recipe.json");
  }
  return options;
}

class TrainGoldenTest : public testing::TestWithParam<bool> {};

TEST_P(TrainGoldenTest, TwentySteps) {
  const bool four_bit = GetParam();
  const TemporaryFolder folder;
  const fs::path dir = folder / "run";
  Context context(2);
  TrainObserver observer;
  Train(context, PlanTraining(context, GoldenOptions(four_bit, dir)), observer);

  const std::vector<Json> found = ReadLines(dir / "train_log.jsonl");
  const std::vector<Json> expected =
      ReadLines(kGoldenRun / "train-20" / (four_bit ? "log-nf4.jsonl" : "log-dense.jsonl"));
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(i + 1);
    const auto value = [i](const std::vector<Json>& log, const char* key) {
      return log[i].at(key).get<double>();
    };
    EXPECT_EQ(value(found, "step"), value(expected, "step"));
    EXPECT_EQ(value(found, "tokens"), value(expected, "tokens"));
    EXPECT_NEAR(value(found, "learning_rate"), value(expected, "learning_rate"), 1e-12);
    EXPECT_NEAR(value(found, "loss"), value(expected, "loss"), 1e-5 * value(expected, "loss"));
    EXPECT_NEAR(value(found, "grad_norm"), value(expected, "grad_norm"),
                1e-4 * value(expected, "grad_norm"));
  }
}

INSTANTIATE_TEST_SUITE_P(Bases, TrainGoldenTest, testing::Bool(),
                         [](const auto& base) { return base.param ? "nf4" : "dense"; });

}  // namespace
}  // namespace qlora
