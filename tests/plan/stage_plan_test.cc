// The plan of a pipeline.
#include "plan/stage_plan.h"

#include <gtest/gtest.h>

#include "qlora/shape_plan.h"

namespace qlora {
namespace {

// Stages wait for the first and the last micro-batch: (P - 1) / (M + P - 1) of a step.
TEST(StagePlan, IdleShareIsThatOfOneForwardOneBackward) {
  for (const int stages : {1, 2, 4, 8}) {
    for (const std::int64_t count : {1, 4, 8, 32}) {
      const double expected =
          static_cast<double>(stages - 1) / static_cast<double>(count + stages - 1);
      EXPECT_NEAR(IdleShare(stages, count), expected, 1e-9) << stages << " " << count;
    }
  }
}

// Eighty layers on four machines of 24 GiB, which none of them would hold alone.
TEST(StagePlan, LargeModelsFitOnSeveralMachines) {
  Context context(1);
  TrainOptions options;
  options.model_name_or_path = "Llama-3.3-70B";
  options.data.reading.max_length = 1024;
  options.per_device_train_batch_size = 1;
  options.gradient_accumulation_steps = 16;
  options.max_memory = "24GiB";
  const ShapePlan alone = PlanShape(context, options);
  EXPECT_GT(alone.memory.peak(), std::size_t{24} << 30);
  options.pipeline_stages = 4;
  const ShapePlan plan = PlanShape(context, options, 8);
  ASSERT_EQ(plan.ranks.of_stages.size(), 4u);
  std::int64_t layers = 0;
  for (const StagePlan& stage : plan.ranks.of_stages) {
    EXPECT_EQ(stage.first_layer, layers);
    layers += stage.layers;
    EXPECT_LT(stage.memory, std::size_t{24} << 30);
  }
  EXPECT_EQ(layers, 80);
  EXPECT_NEAR(plan.ranks.idle_share, 3.0 / 19, 1e-9);
  // Of stages of as many layers, an earlier one keeps the activations of more micro-batches.
  options.recompute = "layer";
  const ShapePlan equal = PlanShape(context, options, 8);
  ASSERT_EQ(equal.ranks.of_stages[1].layers, equal.ranks.of_stages[2].layers);
  EXPECT_GT(equal.ranks.of_stages[1].memory, equal.ranks.of_stages[2].memory);
}

}  // namespace
}  // namespace qlora
