// The loops of multiply-adds: each that this machine has runs, and kernels have theirs.
#include "machine/peak.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace qlora {
namespace {

TEST(PeakTest, LoopsOfThisMachineRunOnAllThreads) {
  Context context(2);
  for (const PeakLoop& loop : PeakLoops()) {
    EXPECT_GT(loop.operations, 0) << loop.instruction;
    if (!loop.is_there()) continue;
    EXPECT_EQ(RunPeakLoop(context, loop),
              2 * loop.operations * static_cast<double>(loop.instructions))
        << loop.instruction;
  }
}

TEST(PeakTest, EachTargetHasTheLoopOfItsKernels) {
  for (const SimdTarget target : SimdTargets()) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      const PeakLoop& loop = PeakLoopOf(target, compute);
      EXPECT_TRUE(loop.is_there()) << NameOf(target) << " " << loop.instruction;
      const bool dots = MultipliesBfloat16(target) && compute == DType::kBF16;
      EXPECT_STREQ(loop.operands, dots ? "bf16" : "f32");
    }
    SetSimdTarget(target);
    EXPECT_TRUE(PeakLoopOf(target, DType::kI8).is_there()) << NameOf(target);
    SetSimdTarget(BestSimdTarget());
    // Wider vectors do more at a time.
    EXPECT_GE(PeakLoopOf(target, DType::kF32).operations,
              PeakLoopOf(SimdTarget::kScalar, DType::kF32).operations);
  }
}

TEST(PeakTest, MeasuresThePeakOfTheKernelsInUse) {
  Context context(1);
  EXPECT_GT(MeasurePeak(context, DType::kF32), 0);
}

}  // namespace
}  // namespace qlora
