#include "plan/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "qlora/error.h"
#include "qlora/shape_plan.h"
#include "test_build.h"

namespace qlora {
namespace {

// Bytes of four layers: what each keeps.
std::size_t KeptBytes(const std::vector<Recompute>& levels) {
  std::size_t bytes = 0;
  for (const Recompute level : levels) {
    bytes += 10;
    bytes += RecomputesAttention(level) ? 0 : 30;
    bytes += RecomputesMlp(level) ? 0 : 60;
  }
  return bytes;
}

TEST(ChooseRecompute, TakesTheLeastThatFits) {
  using enum Recompute;
  EXPECT_EQ(ChooseRecompute(4, 400, KeptBytes), (std::vector{kNone, kNone, kNone, kNone}));
  EXPECT_EQ(ChooseRecompute(4, 399, KeptBytes), (std::vector{kAttention, kNone, kNone, kNone}));
  EXPECT_EQ(ChooseRecompute(4, 280, KeptBytes),
            (std::vector{kAttention, kAttention, kAttention, kAttention}));
  EXPECT_EQ(ChooseRecompute(4, 279, KeptBytes),
            (std::vector{kLayer, kAttention, kAttention, kAttention}));
  EXPECT_EQ(ChooseRecompute(4, 40, KeptBytes), (std::vector{kLayer, kLayer, kLayer, kLayer}));
}

TEST(ChooseRecompute, GivesTheSmallestWhenNothingFits) {
  const std::vector<Recompute> levels = ChooseRecompute(3, 1, KeptBytes);
  EXPECT_EQ(levels, std::vector<Recompute>(3, Recompute::kLayer));
}

TEST(Recompute, NamesComeBack) {
  for (const Recompute level :
       {Recompute::kNone, Recompute::kAttention, Recompute::kMlp, Recompute::kLayer}) {
    EXPECT_EQ(ParseRecompute(NameOf(level)), level);
  }
  EXPECT_THROW(ParseRecompute("some"), Error);
}

TEST(Recompute, DescribesMixtures) {
  using enum Recompute;
  const std::vector<Recompute> levels = {kLayer, kLayer, kAttention};
  EXPECT_EQ(DescribeRecompute(levels), "attention in 1 of 3 layers, layer in 2 of 3 layers");
}

// Of each part but what the process of this test holds.
TEST(MemoryPlan, TakesNoMoreInEightBitsThanInBfloat16) {
  Context context(2);
  const auto parts = [&](const char* compute_dtype, std::int64_t length) {
    TrainOptions options;
    options.model_name_or_path = SourceDir() / "tests/golden/llama-tiny/config.json";
    options.data.reading.max_length = length;
    options.compute_dtype = compute_dtype;
    options.int8_backward = options.compute_dtype == "int8";
    return PlanShape(context, options).memory.parts;
  };
  for (const std::int64_t length : {16, 64}) {
    const std::vector<MemoryPart> int8 = parts("int8", length);
    const std::vector<MemoryPart> bfloat16 = parts("bfloat16", length);
    ASSERT_EQ(int8.size(), bfloat16.size());
    for (std::size_t i = 0; i < int8.size(); ++i) {
      EXPECT_EQ(int8[i].name, bfloat16[i].name);
      if (int8[i].name == "program and data") continue;
      EXPECT_LE(int8[i].bytes, bfloat16[i].bytes) << int8[i].name << " " << length;
    }
  }
}

// As the run itself does.
TEST(ShapePlan, WarnsOfEightBitsWithoutQuantizedWeights) {
  Context context(1);
  const auto warnings = [&](bool load_in_4bit) {
    TrainOptions options;
    options.model_name_or_path = SourceDir() / "tests/golden/llama-tiny/config.json";
    options.compute_dtype = "int8";
    options.load_in_4bit = load_in_4bit;
    return PlanShape(context, options).warnings;
  };
  const auto idle = ::testing::Contains(::testing::HasSubstr("compute_dtype int8 has no effect"));
  EXPECT_THAT(warnings(false), idle);
  EXPECT_THAT(warnings(true), ::testing::Not(idle));
}

TEST(MemoryLimit, IsWhatWasAskedWhereItIsFree) {
  EXPECT_EQ(MemoryLimit("1MB", 0.1, HostMemory()), 1000000u);
}

// A memory of 100 bytes, of which 90 are free and 20 are held: pages of files are both.
class SmallMemory final : public Memory {
 public:
  std::byte* Allocate(std::size_t /*bytes*/) override { return nullptr; }
  void Free(std::byte* /*data*/, std::size_t /*bytes*/) noexcept override {}
  void Upload(const void* /*host*/, void* /*data*/, std::size_t /*bytes*/) override {}
  void Download(const void* /*data*/, void* /*host*/, std::size_t /*bytes*/) override {}
  void Zero(void* /*data*/, std::size_t /*bytes*/) override {}
  std::size_t Available() const override { return 90; }
  std::size_t Held() const override { return 20; }
  std::size_t Total() const override { return 100; }
};

TEST(MemoryLimit, IsAtMostTheWholeMemory) {
  const SmallMemory memory;
  EXPECT_EQ(MemoryLimit("", 0, memory), 100u);
  EXPECT_EQ(MemoryLimit("", 0.5, memory), 65u);
  EXPECT_EQ(MemoryLimit("1MB", 0, memory), 100u);
  EXPECT_LE(MemoryLimit("", 0, HostMemory()), HostMemory().Total());
}

}  // namespace
}  // namespace qlora
