// What a plan advises to a run that does not fit, for the machines of another host.
#include <gmock/gmock.h>

#include <functional>
#include <vector>

#include "qlora/shape_plan.h"

namespace qlora {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TrainOptions RunOf(const char* model, const char* max_memory, std::int64_t length) {
  TrainOptions options;
  options.model_name_or_path = model;
  options.max_memory = max_memory;
  options.per_device_train_batch_size = 1;
  options.gradient_accumulation_steps = 1;
  options.data.reading.max_length = length;
  return options;
}

// Of one of two machines, so that the free memory of this one is no limit.
MemoryPlan PlanOf(const TrainOptions& options) {
  Context context(1);
  return PlanShape(context, options, 2).memory;
}

TEST(MemoryAdvice, SaysWhatFitsASmallerMachine) {
  TrainOptions options = RunOf("Llama-3-8B", "12GB", 32768);
  options.per_device_train_batch_size = 4;
  EXPECT_THAT(
      PlanOf(options).shortage,
      AllOf(HasSubstr("max_memory 12GB allows 11.18 GiB"),
            HasSubstr("per_device_train_batch_size 1, max_length"), HasSubstr("would fit")));
  options.max_memory = "4GB";
  EXPECT_THAT(PlanOf(options).shortage, HasSubstr("a smaller model or more memory is needed"));
}

// The number behind a name, or 0 where the text does not have the name.
std::int64_t NumberAfter(const std::string& text, const std::string& name) {
  const std::size_t at = text.find(name + " ");
  return at == std::string::npos ? 0 : std::stoll(text.substr(at + name.size() + 1));
}

// The settings that the message names fit, and none of them can be left out.
TEST(MemoryAdvice, IsTrueAndNoMoreThanNeeded) {
  for (const char* recompute : {"none", "auto"}) {
    for (const char* max_memory : {"7GB", "8GB", "9GB", "12GB"}) {
      TrainOptions options = RunOf("Qwen2.5-7B", max_memory, 16384);
      options.per_device_train_batch_size = 4;
      options.recompute = recompute;
      options.optim = "lion";
      const std::string shortage = PlanOf(options).shortage;
      SCOPED_TRACE(shortage);
      const std::string advice = shortage.substr(shortage.find("). ") + 3);
      ASSERT_THAT(advice, HasSubstr("would fit: "));
      using Change = std::function<void(TrainOptions&)>;
      std::vector<Change> changes;
      if (const std::int64_t batch = NumberAfter(advice, "per_device_train_batch_size")) {
        changes.emplace_back([batch](auto& o) { o.per_device_train_batch_size = batch; });
      }
      if (const std::int64_t length = NumberAfter(advice, "max_length")) {
        changes.emplace_back([length](auto& o) { o.data.reading.max_length = length; });
      }
      if (advice.find("optim lion_8bit") != std::string::npos) {
        changes.emplace_back([](auto& o) { o.optim = "lion_8bit"; });
      }
      if (advice.find("recompute auto") != std::string::npos) {
        changes.emplace_back([](auto& o) { o.recompute = "auto"; });
      }
      ASSERT_FALSE(changes.empty());
      // left_out: -1, or a change that is not made.
      for (std::int64_t left_out = -1; left_out < std::ssize(changes); ++left_out) {
        TrainOptions changed = options;
        for (std::int64_t i = 0; i < std::ssize(changes); ++i) {
          if (i != left_out) changes[i](changed);
        }
        EXPECT_EQ(PlanOf(changed).shortage.empty(), left_out < 0) << left_out;
      }
    }
  }
}

TEST(MemoryAdvice, APagedOptimizerIsNamedBeforeShorterSequences) {
  TrainOptions options = RunOf("Llama-3-8B", "1TB", 2048);
  options.lora_r = 256;
  options.recompute = "layer";
  const std::size_t peak = PlanOf(options).peak();
  options.max_memory = std::to_string(peak - (std::size_t{1500} << 20));
  EXPECT_THAT(PlanOf(options).shortage,
              AllOf(HasSubstr("optim paged_adamw"), Not(HasSubstr("per_device_train_batch_size")),
                    Not(HasSubstr("max_length"))));
}

}  // namespace
}  // namespace qlora
