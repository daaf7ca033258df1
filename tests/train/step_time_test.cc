// Estimates of the time of a run, from rates that no machine has.
#include "train/step_time.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

constexpr ProductRates kPlain = {4, 2};
constexpr ProductRates kBf16 = {4, 2};
constexpr ProductRates kCoded = {40, 20};

TEST(StepTimeTest, NothingButProductsWithQuantizedWeightsGetsFaster) {
  const TimeEstimate time =
      EstimateOf({.others = 100}, FrozenProducts::kFloat, kPlain, kBf16, kCoded);
  EXPECT_GT(time.seconds, 100 / kPlain.forward);
  EXPECT_DOUBLE_EQ(time.int8.value(), time.seconds);
  EXPECT_DOUBLE_EQ(time.int8_backward.value(), time.seconds);
}

TEST(StepTimeTest, ProductsGetFasterByTheirRates) {
  const Flops flops = {.forward = 80, .backward = 40, .others = 30};
  const TimeEstimate time = EstimateOf(flops, FrozenProducts::kFloat, kPlain, kBf16, kCoded);
  // Forward 20 s and backward 20 s become 2 s each.
  EXPECT_DOUBLE_EQ(time.seconds - time.int8.value(), 18);
  EXPECT_DOUBLE_EQ(time.seconds - time.int8_backward.value(), 36);
  // In bfloat16 that is half as fast, dx and the others take 20 s and 30 / (8 / 3) s more.
  const TimeEstimate slow = EstimateOf(flops, FrozenProducts::kFloat, kPlain, {2, 1}, kCoded);
  EXPECT_DOUBLE_EQ(slow.int8.value() - time.int8.value(), 20 + 11.25);
  EXPECT_DOUBLE_EQ(slow.int8_backward.value() - time.int8_backward.value(), 11.25);
}

TEST(StepTimeTest, ARunInEightBitsTakesWhatIsSaidOfItInBfloat16) {
  const Flops flops = {.forward = 80, .backward = 40, .others = 30};
  const TimeEstimate bf16 = EstimateOf(flops, FrozenProducts::kFloat, kBf16, kBf16, kCoded);
  const TimeEstimate forward =
      EstimateOf(flops, FrozenProducts::kInt8Forward, kBf16, kBf16, kCoded);
  EXPECT_DOUBLE_EQ(forward.seconds, bf16.int8.value());
  EXPECT_FALSE(forward.int8 || forward.int8_backward);
  const TimeEstimate both = EstimateOf(flops, FrozenProducts::kInt8, kBf16, kBf16, kCoded);
  EXPECT_DOUBLE_EQ(both.seconds, bf16.int8_backward.value());
}

}  // namespace
}  // namespace qlora
