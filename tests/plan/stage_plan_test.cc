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
  // What more micro-batches in flight cost: a stage keeps as many as stages follow it, and its own.
  options.recompute = "layer";
  const ShapePlan sixteen = PlanShape(context, options, 8);
  options.gradient_accumulation_steps = 1;
  const ShapePlan one = PlanShape(context, options, 8);
  const auto kept = [&](std::size_t stage) {
    const StagePlan& more = sixteen.ranks.of_stages[stage];
    EXPECT_EQ(more.layers, one.ranks.of_stages[stage].layers);
    return static_cast<double>(more.memory - one.ranks.of_stages[stage].memory) /
           static_cast<double>(more.layers);
  };
  EXPECT_GT(kept(1), kept(2));
  EXPECT_GT(kept(2), 0);
}

}  // namespace
}  // namespace qlora
