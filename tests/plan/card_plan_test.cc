// Plans for NVIDIA cards on a machine without a GPU.
#include <gmock/gmock.h>

#include <functional>

#include "backend/backend.h"
#include "qlora/error.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class CardPlanTest : public TinyRunTest {
 protected:
  void SetUp() override {
    if (DescribeCuda().problem.empty()) GTEST_SKIP() << "this machine has a GPU of some size";
  }
  // Of a micro-batch of one sequence.
  static TrainOptions Card(const std::string& model, const char* max_memory, std::int64_t length) {
    TrainOptions options;
    options.model_name_or_path = model;
    options.device = "cuda";
    options.max_memory = max_memory;
    options.per_device_train_batch_size = 1;
    options.gradient_accumulation_steps = 1;
    options.data.reading.max_length = length;
    return options;
  }
  static MemoryPlan PlanOf(const TrainOptions& options) {
    Context context(1);
    return PlanShape(context, options).memory;
  }
  static MemoryPlace PlaceOf(const MemoryPlan& plan, const std::string& name) {
    for (const MemoryPart& part : plan.parts) {
      if (part.name == name) return part.place;
    }
    ADD_FAILURE() << "no " << name;
    return {};
  }
  static std::size_t BytesOf(const MemoryPlan& plan, const std::string& name) {
    for (const MemoryPart& part : plan.parts) {
      if (part.name == name) return part.bytes;
    }
    ADD_FAILURE() << "no " << name;
    return 0;
  }
  static bool Has(const MemoryPlan& plan, const std::string& name) {
    return std::any_of(plan.parts.begin(), plan.parts.end(),
                       [&](const MemoryPart& part) { return part.name == name; });
  }
};

TEST_F(CardPlanTest, PlansHostAndDeviceApart) {
  const MemoryPlan plan = PlanOf(Card("Llama-3-8B", "24GB", 2048));
  EXPECT_EQ(plan.shortage, "");
  EXPECT_EQ(plan.place, MemoryPlace::kDevice);
  EXPECT_LE(plan.bytes(MemoryPlace::kDevice), 24'000'000'000u);
  EXPECT_EQ(PlaceOf(plan, "weights"), MemoryPlace::kDevice);
  EXPECT_EQ(PlaceOf(plan, "context and libraries"), MemoryPlace::kDevice);
  EXPECT_EQ(PlaceOf(plan, "program and data"), MemoryPlace::kHost);
  EXPECT_EQ(plan.bytes(MemoryPlace::kHost), plan.host);
}

// 128256 x 4096 in bfloat16.
TEST_F(CardPlanTest, TheEmbeddingLeavesACardThatIsTooSmallForIt) {
  const MemoryPlan large = PlanOf(Card("Llama-3-8B", "24GB", 2048));
  EXPECT_FALSE(Has(large, "token embedding"));
  const MemoryPlan small = PlanOf(Card("Llama-3-8B", "10GB", 2048));
  EXPECT_EQ(small.shortage, "");
  EXPECT_EQ(PlaceOf(small, "token embedding"), MemoryPlace::kHost);
  EXPECT_LT(small.bytes(MemoryPlace::kDevice), large.bytes(MemoryPlace::kDevice));
  const std::size_t of_ladder = large.ladder.back().bytes - small.ladder.back().bytes;
  EXPECT_EQ(of_ladder, std::size_t{128256} * 4096 * 2);
  // One table for embedding and head.
  EXPECT_FALSE(Has(PlanOf(Card("Llama-3.2-1B", "2GB", 4096)), "token embedding"));
}

TEST_F(CardPlanTest, TheWorkspaceShrinksBeforeLayersAreOffloaded) {
  const auto plan_of = [](const char* max_memory, const char* recompute) {
    TrainOptions options = Card("Llama-3-8B", max_memory, 2048);
    options.optim = "paged_adamw";
    options.recompute = recompute;
    return PlanOf(options);
  };
  const MemoryPlan large = plan_of("24GB", "auto");
  EXPECT_EQ(BytesOf(plan_of("24GB", "layer"), "workspace"), BytesOf(large, "workspace"));
  const MemoryPlan small = plan_of("7.6GB", "auto");
  EXPECT_EQ(small.shortage, "");
  EXPECT_LT(BytesOf(small, "workspace"), BytesOf(large, "workspace") / 2);
  EXPECT_THAT(small.recompute, Not(HasSubstr("offload")));
  const MemoryPlan smallest = plan_of("6.4GB", "auto");
  EXPECT_EQ(smallest.shortage, "");
  EXPECT_EQ(BytesOf(smallest, "workspace"), BytesOf(small, "workspace"));
  EXPECT_THAT(smallest.recompute, HasSubstr("offload"));
  // Also where there is more memory, because who asks for it wants little to be used.
  EXPECT_EQ(BytesOf(plan_of("24GB", "offload"), "workspace"), BytesOf(small, "workspace"));
}

TEST_F(CardPlanTest, SaysWhatFitsASmallerCard) {
  TrainOptions options = Card("Llama-3-8B", "12GB", 32768);
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
TEST_F(CardPlanTest, TheAdviceIsTrueAndNoMoreThanNeeded) {
  for (const char* recompute : {"none", "auto"}) {
    for (const char* max_memory : {"7GB", "8GB", "9GB", "12GB"}) {
      TrainOptions options = Card("Qwen2.5-7B", max_memory, 16384);
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

TEST_F(CardPlanTest, APagedOptimizerIsNamedBeforeShorterSequences) {
  TrainOptions options = Card("Llama-3-8B", "24GB", 2048);
  options.lora_r = 256;
  options.recompute = "offload";
  const std::size_t peak = PlanOf(options).peak();
  options.max_memory = std::to_string(peak - (std::size_t{1500} << 20));
  const MemoryPlan plan = PlanOf(options);
  EXPECT_THAT(plan.shortage,
              AllOf(HasSubstr("optim paged_adamw"), Not(HasSubstr("per_device_train_batch_size")),
                    Not(HasSubstr("max_length"))));
}

TEST_F(CardPlanTest, ARunIsPlannedForReadingAlone) {
  TrainOptions options = Options("run");
  options.device = "cuda";
  options.compute_dtype = "auto";
  Context context(1);
  try {
    PlanTraining(context, options);
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(error.what(), HasSubstr("run on the CPU with device cpu"));
  }
  const TrainPlan plan = PlanTraining(context, options, PlanPurpose::kReading);
  EXPECT_NO_THROW(CheckPlan(plan));
  EXPECT_EQ(plan.memory.place, MemoryPlace::kDevice);
  ASSERT_FALSE(plan.warnings.empty());
  EXPECT_THAT(plan.warnings.back(), HasSubstr("planned without a GPU"));
  TrainObserver observer;
  EXPECT_THROW(Train(context, plan, observer), Error);
}

}  // namespace
}  // namespace qlora
