// Values of training options that depend on other options.
#include "qlora/train_options.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "qlora/error.h"
#include "qlora/options.h"

namespace qlora {
namespace {

TEST(Warmup, IsNotIgnored) {
  const auto complete = [](const char* key, const char* value) {
    TrainOptions options;
    OptionTable table;
    options.Declare(table);
    table.Set("lr_scheduler_type", "constant", "test");
    table.Set(key, value, "test");
    options.Complete(table);
    return options.warmup_ratio;
  };
  EXPECT_EQ(complete("lora_r", "8"), 0);
  EXPECT_EQ(complete("warmup_ratio", "0"), 0);
  EXPECT_THROW(complete("warmup_ratio", "0.03"), Error);
}

// Options that are set in this order, completed.
TrainOptions Completed(const std::vector<std::pair<const char*, const char*>>& set) {
  TrainOptions options;
  OptionTable table;
  options.Declare(table);
  for (const auto& [key, value] : set) table.Set(key, value, "test");
  options.Complete(table);
  return options;
}

// 0 is a number of steps. What an older run recorded has both options, and keeps its ratio.
TEST(Warmup, OfNoStepsIsNone) {
  for (const char* zero : {"0", "0.0", "0e3"}) {
    EXPECT_EQ(Completed({{"warmup_steps", zero}}).warmup_ratio, 0) << zero;
  }
  EXPECT_EQ(Completed({{"warmup_steps", "7"}}).warmup_ratio, 0.03);
  EXPECT_EQ(Completed({}).warmup_ratio, 0.03);
  EXPECT_EQ(Completed({{"warmup_steps", "0"}, {"warmup_ratio", "0.03"}}).warmup_ratio, 0.03);
}

TEST(MinLr, OfZeroIsAValue) {
  EXPECT_EQ(Completed({{"lr_scheduler_type", "cosine_with_min_lr"}, {"min_lr", "0"}}).min_lr, 0);
  EXPECT_THROW(Completed({{"lr_scheduler_type", "cosine_with_min_lr"}}), Error);
}

TEST(Preset, GivesWhatTheUserLeftOpen) {
  TrainOptions options;
  OptionTable table;
  options.Declare(table);
  table.Set("preset", "qlora-paper", "test");
  table.Set("lora_r", "8", "test");
  options.Complete(table);
  EXPECT_EQ(options.lora_r, 8);
  EXPECT_EQ(options.lora_alpha, 16);
  EXPECT_EQ(options.max_grad_norm, 0.3);
  EXPECT_EQ(options.lr_scheduler_type, "constant");
  EXPECT_EQ(options.optim, "paged_adamw_32bit");
}

}  // namespace
}  // namespace qlora
