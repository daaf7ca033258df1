// What is known of weights before they are read.
#include "model/weights.h"

#include <gtest/gtest.h>

#include <memory>

#include "hub/known_models.h"
#include "io/json.h"
#include "qlora/context.h"

namespace qlora {
namespace {

QuantizedShares SharesOfPlan(const char* name, bool load_in_4bit) {
  Context context(1);
  const std::unique_ptr<Backend> backend = MakeCpuBackend(context, DType::kF32);
  const DecoderConfig config = ParseDecoderConfig(*KnownModelConfig(name), name);
  LoadOptions load;
  load.load_in_4bit = load_in_4bit;
  return PlanWeights(context, *backend, config, load).quantized;
}

TEST(QuantizedSharesTest, OfAModelThatIsQuantizedOnLoad) {
  const QuantizedShares shares = SharesOfPlan("Qwen3-0.6B", true);
  for (const LinearGroup group :
       {LinearGroup::kQkv, LinearGroup::kO, LinearGroup::kGateUp, LinearGroup::kDown}) {
    EXPECT_EQ(shares.Of(group), 1);
  }
  EXPECT_EQ(shares.Of(LinearGroup::kSideIn), 0);  // there are none
  EXPECT_EQ(shares.head, 0);
  EXPECT_TRUE(shares.any());
}

TEST(QuantizedSharesTest, OfADenseModelAreZero) {
  EXPECT_FALSE(SharesOfPlan("Qwen3-0.6B", false).any());
}

// They are published in MXFP4.
TEST(QuantizedSharesTest, OfExpertsAlone) {
  const QuantizedShares shares = SharesOfPlan("gpt-oss-20b", false);
  EXPECT_EQ(shares.Of(LinearGroup::kGateUp), 1);
  EXPECT_EQ(shares.Of(LinearGroup::kDown), 1);
  EXPECT_EQ(shares.Of(LinearGroup::kQkv), 0);
  EXPECT_EQ(shares.Of(LinearGroup::kO), 0);
}

}  // namespace
}  // namespace qlora
