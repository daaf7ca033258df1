#include "machine/simd_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace qlora {
namespace {

TEST(SimdTargets, AscendFromScalar) {
  const auto targets = SimdTargets();
  ASSERT_FALSE(targets.empty());
  EXPECT_EQ(targets.front(), SimdTarget::kScalar);
  EXPECT_TRUE(std::ranges::is_sorted(targets));
}

TEST(SimdTargets, TheBestIsTheLastButForSlowBfloat16) {
  const SimdTarget last = SimdTargets().back();
  if (BestSimdTarget() == last) return;
  EXPECT_EQ(last, SimdTarget::kAvx512Bf16);
  EXPECT_EQ(BestSimdTarget(), SimdTarget::kAvx512);
}

TEST(SimdTargets, EachCanBeUsed) {
  for (const SimdTarget target : SimdTargets()) {
    SetSimdTarget(target);
    EXPECT_EQ(ActiveSimdTarget(), target) << NameOf(target);
  }
  SetSimdTarget(BestSimdTarget());
}

TEST(SimdTargets, EachHasInstructionsForProductsInEightBits) {
  for (const SimdTarget target : SimdTargets()) {
    SetSimdTarget(target);
    EXPECT_TRUE(HasInt8Dots(target, ActiveInt8Dots())) << NameOf(target);
    EXPECT_TRUE(HasInt8Dots(target, Int8Dots::kFloat)) << NameOf(target);
  }
  EXPECT_FALSE(HasInt8Dots(SimdTarget::kScalar, Int8Dots::kMadd));
  SetSimdTarget(BestSimdTarget());
}

#if defined(__x86_64__)
TEST(SimdTargets, ScalarKernelsAreWarnedOf) {
  SetSimdTarget(SimdTarget::kScalar);
  EXPECT_THAT(WarnOfScalarKernels(), testing::HasSubstr("slower"));
  SetSimdTarget(BestSimdTarget());
  EXPECT_EQ(WarnOfScalarKernels().empty(), BestSimdTarget() != SimdTarget::kScalar);
}
#endif

}  // namespace
}  // namespace qlora
