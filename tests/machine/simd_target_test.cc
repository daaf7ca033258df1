#include "machine/simd_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "qlora/error.h"

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
    const std::vector<Int8Dots> all = Int8DotsOf(target);
    EXPECT_EQ(all.front(), Int8Dots::kFloat) << NameOf(target);
    EXPECT_TRUE(std::ranges::is_sorted(all)) << NameOf(target);
    SetSimdTarget(target);
    EXPECT_EQ(ActiveInt8Dots(), all.back()) << NameOf(target);
    for (const Int8Dots dots : all) {
      SetSimdKernels({target, dots});
      EXPECT_EQ(ActiveInt8Dots(), dots) << NameOf(target);
    }
  }
  EXPECT_THAT(Int8DotsOf(SimdTarget::kScalar), testing::ElementsAre(Int8Dots::kFloat));
  SetSimdTarget(BestSimdTarget());
}

TEST(SimdTargets, AreReadByTheirNames) {
  for (const SimdTarget target : SimdTargets()) {
    const std::string name = NameOf(target);
    EXPECT_EQ(ParseSimdKernels(name).target, target);
    EXPECT_EQ(ParseSimdKernels(name).int8, Int8DotsOf(target).back()) << name;
    for (const Int8Dots dots : Int8DotsOf(target)) {
      const SimdKernels kernels = ParseSimdKernels(name + "+" + NameOf(dots));
      EXPECT_EQ(kernels.target, target) << name;
      EXPECT_EQ(kernels.int8, dots) << name;
    }
  }
  EXPECT_EQ(ParseSimdKernels("").target, BestSimdTarget());
  EXPECT_EQ(ParseSimdKernels("+float").target, BestSimdTarget());
  EXPECT_EQ(ParseSimdKernels("+float").int8, Int8Dots::kFloat);
}

std::string ErrorOf(std::string_view text) {
  try {
    ParseSimdKernels(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(SimdTargets, ErrorsNameTheChoices) {
  using testing::HasSubstr;
  const std::string first = NameOf(SimdTarget::kScalar);
#if defined(__x86_64__)
  EXPECT_THAT(ErrorOf("sse"), HasSubstr("expected one of scalar, avx2, avx512, avx512bf16, amx"));
  for (const char* dots : {"dp4a", "sdot", ""}) {
    EXPECT_THAT(ErrorOf(first + "+" + dots),
                HasSubstr("QLORA_TARGET: expected one of float, madd, vnni, amx behind the plus, "
                          "found '" +
                          std::string(dots) + "'"));
  }
  EXPECT_THAT(ErrorOf("scalar+amx"),
              HasSubstr("scalar has at most +float on this machine, found scalar+amx"));
  if (SimdTargets().back() != SimdTarget::kAmx) {
    EXPECT_THAT(ErrorOf("amx"), HasSubstr("this machine has at most "));
  }
#else
  EXPECT_THAT(ErrorOf("sve"), HasSubstr("expected one of neon, neondot, neonmatrix"));
  EXPECT_THAT(ErrorOf(first + "+amx"),
              HasSubstr("expected one of float, sdot, usmmla behind the plus, found 'amx'"));
#endif
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
