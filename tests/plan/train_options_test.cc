// Values of training options that depend on other options.
#include "qlora/train_options.h"

#include <gtest/gtest.h>

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
