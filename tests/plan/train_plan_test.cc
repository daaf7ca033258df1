// A plan as a value: what it holds, runs that do not fit, and the same run on another base.
#include <gmock/gmock.h>

#include "plan/memory_plan.h"
#include "plan/run/prepared_run.h"
#include "qlora/error.h"
#include "test_build.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

using testing::HasSubstr;

class PlanTrainingTest : public TinyRunTest {
 protected:
  static TrainPlan Plan(const TrainOptions& options) {
    Context context(1);
    return PlanTraining(context, options);
  }
  static Error ErrorOf(const TrainPlan& plan) {
    try {
      CheckPlan(plan);
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "the plan fits";
    return Error(ErrorCode::kRuntime, "");
  }
};

TEST_F(PlanTrainingTest, HoldsWhatTheRunNeedsAndWritesNothing) {
  const TrainPlan plan = Plan(Options("run"));
  EXPECT_NO_THROW(CheckPlan(plan));
  EXPECT_EQ(plan.total_steps, 12);
  EXPECT_EQ(plan.data.train.samples, 40);
  EXPECT_EQ(plan.memory.ladder.size(), 4u);
  EXPECT_GT(plan.disk.adapter, 0u);
  EXPECT_FALSE(fs::exists(root_ / "run"));
}

TEST_F(PlanTrainingTest, AMemoryThatIsTooSmallIsAFinding) {
  TrainOptions options = Options("run");
  options.max_memory = "1MB";
  const TrainPlan plan = Plan(options);
  EXPECT_GT(plan.memory.peak(), 1000000u);
  const Error error = ErrorOf(plan);
  EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
  EXPECT_EQ(error.what(), plan.memory.shortage);
  EXPECT_THAT(error.what(), HasSubstr("max_memory 1MB allows"));
}

TEST_F(PlanTrainingTest, ParquetIsReadWithinTheMemoryThatIsAllowed) {
  TrainOptions options = Options("run");
  options.data.dataset = {SourceDir() / "tests/golden/parquet/good/duckdb-one-row.parquet"};
  EXPECT_EQ(Plan(options).data.train.samples, 1);
  options.max_memory = "8B";
  try {
    Plan(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("more than 8 bytes of memory"));
  }
}

TEST_F(PlanTrainingTest, ADiskThatIsTooSmallIsAFinding) {
  TrainOptions options = Options("run");
  options.max_steps = std::int64_t{1} << 40;
  options.lora_dropout = 0;  // whose random numbers would not suffice
  options.save_steps = 1;
  const TrainPlan plan = Plan(options);
  EXPECT_EQ(plan.total_steps, options.max_steps);
  const Error error = ErrorOf(plan);
  EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(error.what(), HasSubstr("save_total_limit"));
}

TEST_F(PlanTrainingTest, RandomNumbersOfDropoutSufficeOrTheRunIsRefused) {
  TrainOptions options = Options("run");
  options.gradient_accumulation_steps = 1 << 20;
  options.max_steps = 32;
  EXPECT_EQ(Plan(options).total_steps, 32);
  options.max_steps = 33;
  try {
    Plan(options);
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("at most 33554432 micro-batches"));
  }
}

TEST_F(PlanTrainingTest, TheDiskHoldsTheTokenizer) {
  constexpr std::size_t kMore = 1 << 20;
  const auto disk_of = [&](const fs::path& model, const fs::path& adapter) {
    TrainOptions options = Options("run");
    options.model_name_or_path = model;
    options.adapter = adapter;
    return Plan(options).disk;
  };
  const fs::path config = "tokenizer_config.json";
  fs::copy(kGolden / "llama-tiny", root_ / "model");
  const std::string text = ReadTextFile(root_ / "model" / config);
  const DiskPlan before = disk_of(root_ / "model", "");
  WriteTextFile(root_ / "model" / config, text + std::string(kMore, ' '));
  const DiskPlan after = disk_of(root_ / "model", "");
  EXPECT_EQ(after.adapter, before.adapter + kMore);
  EXPECT_EQ(after.checkpoint, before.checkpoint);
  EXPECT_EQ(after.needed, before.needed + kMore);

  // A tokenizer of the adapter's own goes into the checkpoints too.
  WriteTextFile(root_ / "model" / config, text);
  TrainOptions first = Options("first");
  first.max_steps = 1;
  Run(first);
  Json own = Json::parse(text);
  own["eos_token"] = "<unk>";
  WriteTextFile(root_ / "first" / config, own.dump() + std::string(kMore, ' '));
  const DiskPlan continued = disk_of(root_ / "model", root_ / "first");
  EXPECT_GT(continued.checkpoint, before.checkpoint + kMore);
  EXPECT_GE(continued.needed, before.needed + 2 * kMore);
}

TEST_F(PlanTrainingTest, WarnsOfARankAboveThatOfTheWeights) {
  TrainOptions options = Options("run");
  options.lora_r = 4096;
  const std::vector<std::string> warnings = Plan(options).warnings;
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("the rank 4096 of the adapter exceeds the smaller side of"));
}

TEST_F(PlanTrainingTest, WarnsOfLostDataAndOfAWarmupThatEatsTheRun) {
  TrainOptions options = Options("run");
  EXPECT_TRUE(Plan(options).warnings.empty());
  options.data.reading.max_length = 12;
  options.max_steps = 2;
  const std::vector<std::string> warnings = Plan(options).warnings;
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_THAT(warnings[0], HasSubstr("of 40 records "));
  EXPECT_THAT(warnings[0], HasSubstr("raise max_length"));
  EXPECT_THAT(warnings[1], HasSubstr("warm-up takes "));
}

TEST_F(PlanTrainingTest, WarnsOfARunThatTrainsNothing) {
  TrainOptions options = Options("run");
  options.learning_rate = 0;
  const std::vector<std::string> warnings = Plan(options).warnings;
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("learning_rate is 0: "));
}

TEST_F(PlanTrainingTest, AnotherFormOfTheBaseKeepsTheData) {
  const TrainPlan plan = Plan(Options("run"));
  fs::copy(kGolden / "llama-tiny", root_ / "copy");
  Context context(1);
  const TrainPlan changed = ChangeBase(context, plan, root_ / "copy");
  EXPECT_EQ(changed.run->data, plan.run->data);
  EXPECT_EQ(changed.options.model_name_or_path, (root_ / "copy").string());
  TrainObserver observer;
  Train(context, changed, observer);
  Run(Options("direct"));
  EXPECT_TRUE(Adapter("run") == Adapter("direct"));
}

TEST_F(PlanTrainingTest, SumsOfGradientsAreAPart) {
  const auto sums = [&](std::int64_t micro_batches) {
    TrainOptions options = Options("run");
    options.gradient_accumulation_steps = micro_batches;
    for (const MemoryPart& part : Plan(options).memory.parts) {
      if (part.name == "sums of gradients") return part.bytes;
    }
    return std::size_t{0};
  };
  const std::size_t one = sums(2);
  EXPECT_GT(one, 0u);
  EXPECT_EQ(sums(1), 0u);
  EXPECT_EQ(sums(4), 2 * one);
  EXPECT_EQ(sums(100), 3 * one);
}

}  // namespace
}  // namespace qlora
