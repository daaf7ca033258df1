// Runs that keep a part of their memory on the host: what they take is planned, and their bits are
// those of runs that do not.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "cuda/small_backends.h"
#include "model/deeper_model.h"
#include "plan/prepared_run.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

// Short runs without dropout of a model of four layers whose embedding and head are two tables.
class CudaMemory : public TinyRunTest {
 protected:
  CudaMemory() { WriteDeeper(kGolden / "mistral-tiny", root_ / "model", 2); }

  TrainOptions Options(const std::string& name) const {
    TrainOptions options = TinyRunTest::Options(name);
    options.model_name_or_path = root_ / "model";
    options.compute_dtype = "bfloat16";
    options.recompute = "none";
    options.lora_dropout = 0;
    options.gradient_accumulation_steps = 2;
    options.max_steps = 2;
    return options;
  }
};

// Without what the plan counts for the context and libraries of a GPU.
TEST_F(CudaMemory, IsWhatThePlanSays) {
  class Observer : public TrainObserver {
   public:
    void OnStep(const StepReport&) override { allocated = testing_util::AllocatedBytes(); }
    std::optional<std::size_t> allocated;
  };
  const std::pair<const char*, const char*> cases[] = {
      {"adamw", "none"}, {"paged_adamw_8bit", "layer"}, {"adamw_8bit", "offload"}};
  for (const auto& [optim, recompute] : cases) {
    SCOPED_TRACE(optim);
    TrainOptions options = Options(optim);
    options.optim = optim;
    options.recompute = recompute;
    ContextOn context(OnDevice(), 1);
    const TrainPlan plan = PlanTraining(context, options);
    const std::size_t held = OnDevice()->Make(context, DType::kF32)->memory().Held();
    Observer observer;
    Train(context, plan, observer);
    if (!observer.allocated) GTEST_SKIP() << "a GPU rounds allocations up";
    const double ratio = static_cast<double>(*observer.allocated) /
                         static_cast<double>(plan.memory.bytes(MemoryPlace::kDevice) - held);
    EXPECT_LT(ratio, 1.03);
    EXPECT_GT(ratio, 0.97);
  }
}

// Nor does the host wait more often.
TEST_F(CudaMemory, WhatIsOnTheHostGivesTheSameBits) {
  std::vector<std::int64_t> waits;
  const auto train = [&](const TrainOptions& options) {
    const std::int64_t before = testing_util::Waits().value_or(0);
    ContextOn context(OnDevice(), 1);
    const TrainPlan plan = PlanTraining(context, options);
    TrainObserver observer;
    Train(context, plan, observer);
    waits.push_back(testing_util::Waits().value_or(0) - before);
    return plan;
  };
  const TrainPlan all = train(Options("all"));
  EXPECT_FALSE(all.run->needs.host_embedding);
  TrainOptions options = Options("less");
  options.max_memory = std::to_string(all.memory.peak() - 1);
  EXPECT_TRUE(train(options).run->needs.host_embedding);
  const auto adapter = [&](const char* name) {
    return ReadTextFile(root_ / name / "adapter_model.safetensors");
  };
  EXPECT_TRUE(adapter("all") == adapter("less"));
  TrainOptions offloaded = Options("offloaded");
  offloaded.recompute = "offload";
  const TrainPlan offloads = train(offloaded);
  EXPECT_TRUE(std::any_of(
      offloads.memory.parts.begin(), offloads.memory.parts.end(),
      [](const MemoryPart& part) { return part.name == "inputs of offloaded layers"; }));
  EXPECT_TRUE(adapter("all") == adapter("offloaded"));
  TrainOptions both = offloaded;
  both.output_dir = root_ / "both";
  both.max_memory = std::to_string(offloads.memory.peak() - 1);
  EXPECT_TRUE(train(both).run->needs.host_embedding);
  EXPECT_TRUE(adapter("all") == adapter("both"));
  EXPECT_EQ(waits, std::vector<std::int64_t>(4, waits[0]));
}

// Runs whose transfers run beside the computation, late, early or by chance where the device is a
// model: an order that is missing shows as other bits.
class CudaOverlap : public CudaMemory, public testing::WithParamInterface<std::uint64_t> {
 protected:
  class Observer : public TrainObserver {
   public:
    void OnWarning(const std::string& text) override { warnings.push_back(text); }
    void OnStep(const StepReport& report) override { bad_tensors.push_back(report.bad_tensor); }
    std::vector<std::string> warnings, bad_tensors;
  };
  // Of four layers and four groups of parameters.
  TrainOptions Options(const std::string& name, const std::string& optim,
                       const std::string& recompute) const {
    TrainOptions options = CudaMemory::Options(name);
    options.model_name_or_path = kGolden / "smollm3-tiny";
    options.optim = optim;
    options.recompute = recompute;
    options.use_dora = true;
    options.modules_to_save = {"lm_head", "embed_tokens"};
    options.data.reading.max_length = 16;
    options.per_device_train_batch_size = 1;
    options.save_steps = 1;
    return options;
  }
  void Run(const TrainOptions& options, std::uint64_t seed, Observer& observer) {
    ContextOn context(OnDevice(seed), 1);
    const std::int64_t before = testing_util::Waits().value_or(0);
    PlanAndTrain(context, options, observer);
    waits_ = testing_util::Waits().value_or(0) - before;
  }
  void Run(const TrainOptions& options, std::uint64_t seed) {
    Observer observer;
    Run(options, seed, observer);
    EXPECT_TRUE(observer.warnings.empty());
  }
  std::string Last(const TrainOptions& options, const char* file) const {
    return ReadTextFile(fs::path(options.output_dir) / "checkpoint-2" / file);
  }
  void ExpectSame(const TrainOptions& a, const TrainOptions& b) const {
    for (const char* file : {"adapter_model.safetensors", "optimizer.safetensors"}) {
      EXPECT_TRUE(Last(a, file) == Last(b, file)) << file;
    }
  }

  std::int64_t waits_ = 0;  // of the last run
};

TEST_P(CudaOverlap, WhatIsOnTheHostGivesTheSameBits) {
  for (const std::string optim : {"adamw", "adamw_8bit"}) {
    SCOPED_TRACE(optim);
    const TrainOptions kept = Options(optim, optim, "layer");
    Run(kept, GetParam());
    const std::int64_t waits = waits_;
    TrainOptions paged = Options("paged-" + optim, "paged_" + optim, "offload");
    Run(paged, GetParam());
    ExpectSame(kept, paged);
    EXPECT_LE(waits_, waits + 2);  // for the moments of two checkpoints
    if (optim == "adamw") continue;
    // From the moments of a checkpoint.
    fs::remove_all(fs::path(paged.output_dir) / "checkpoint-2");
    paged.resume_from_checkpoint = "auto";
    Run(paged, GetParam());
    ExpectSame(kept, paged);
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, CudaOverlap, testing::Values(0, 1, 31));

class CudaOffload : public CudaOverlap {};

TEST_P(CudaOffload, MemoryThatTheSystemDoesNotLockGivesTheSameBits) {
  if (!testing_util::Waits()) GTEST_SKIP() << "the system of a GPU locks what it likes";
  const TrainOptions locked = Options("locked", "paged_adamw", "offload");
  Run(locked, GetParam());
  const testing_util::LockedLimit limit(0);
  Observer observer;
  const TrainOptions pageable = Options("pageable", "paged_adamw", "offload");
  Run(pageable, GetParam(), observer);
  ExpectSame(locked, pageable);
  ASSERT_EQ(observer.warnings.size(), 1u);
  EXPECT_NE(observer.warnings[0].find("the system does not lock"), std::string::npos);
}

// The input of every layer is looked at, also of those that left the device.
TEST_P(CudaOffload, ABadLayerHasTheSameName) {
  std::vector<std::string> found[2];
  for (const int offload : {0, 1}) {
    TrainOptions options =
        Options("bad" + std::to_string(offload), "adamw", offload == 0 ? "layer" : "offload");
    options.use_dora = false;
    options.learning_rate = 1e25;  // the first update throws the activations out of range
    options.lr_scheduler_type = "constant";
    options.max_grad_norm = 0;
    Observer observer;
    Run(options, GetParam(), observer);
    found[offload] = observer.bad_tensors;
  }
  EXPECT_EQ(found[0], found[1]);
  ASSERT_EQ(found[0].size(), 2u);
  EXPECT_NE(found[0][1], "");
}

INSTANTIATE_TEST_SUITE_P(OneOrder, CudaOffload, testing::Values(0));

}  // namespace
}  // namespace qlora
