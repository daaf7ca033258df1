// The arithmetic of a step by the operands of its products.
#include "pass/flops.h"

#include <gtest/gtest.h>

#include <vector>

#include "random_decoder.h"

namespace qlora {
namespace {

constexpr std::int64_t kRows = 24;
constexpr std::int64_t kSupervised = 5;
constexpr std::int64_t kLength = 8;

QuantizedShares All(double linears, double head = 0) {
  QuantizedShares shares;
  shares.linears.fill(linears);
  shares.head = head;
  return shares;
}

Flops StepOf(const DecoderConfig& config, const QuantizedShares& quantized,
             Recompute recompute = Recompute::kNone, AdapterConfig adapter = {}) {
  return StepFlops(config, RandomAdapter(config, 2, DType::kF32, 1, 0, std::move(adapter)),
                   quantized, kRows, kSupervised, kLength,
                   std::vector<Recompute>(config.layers.size(), recompute));
}

// Parameters of q, k, v, o and of gate, up, down of TinyConfig.
constexpr double kAttention = 16 * (24 + 12 + 12 + 24);
constexpr double kMlp = 3 * 16 * 20;

TEST(FlopsTest, OfQuantizedWeightsAreThoseOfTheirLinears) {
  const Flops flops = StepOf(TinyConfig(), All(1));
  EXPECT_DOUBLE_EQ(flops.forward, kRows * 2 * 2 * (kAttention + kMlp));
  EXPECT_DOUBLE_EQ(flops.backward, flops.forward);
  const Flops again = StepOf(TinyConfig(), All(1), Recompute::kLayer);
  // All but `down` is computed once more, forward.
  EXPECT_DOUBLE_EQ(again.forward, flops.forward + kRows * 2 * 2 * (kAttention + kMlp / 3 * 2));
  EXPECT_DOUBLE_EQ(again.backward, flops.backward);
}

TEST(FlopsTest, SharesMoveFlopsAndKeepTheirSum) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kMlp, Recompute::kLayer}) {
    const Flops dense = StepOf(TinyConfig(), {}, recompute);
    EXPECT_EQ(dense.forward, 0);
    EXPECT_EQ(dense.backward, 0);
    for (const double share : {0.25, 1.0}) {
      const Flops flops = StepOf(TinyConfig(), All(share, share), recompute);
      EXPECT_DOUBLE_EQ(flops.sum(), dense.sum());
      EXPECT_DOUBLE_EQ(flops.forward, share * StepOf(TinyConfig(), All(1, 1), recompute).forward);
    }
  }
  // Of one group.
  QuantizedShares mlp;
  for (const LinearGroup group : {LinearGroup::kGateUp, LinearGroup::kDown}) {
    mlp.linears[static_cast<std::int64_t>(group)] = 1;
  }
  EXPECT_DOUBLE_EQ(StepOf(TinyConfig(), mlp).forward, kRows * 2 * 2 * kMlp);
}

TEST(FlopsTest, AHeadCountsAsWhatItIs) {
  DecoderConfig config = TinyConfig();
  config.vocab_size = 100'000;
  const double head = kSupervised * 2.0 * 100'000 * 16;
  const Flops dense = StepOf(config, All(1));
  EXPECT_GT(dense.others, 2 * head);
  EXPECT_GT(dense.others, 0.9 * dense.sum());
  const Flops quantized = StepOf(config, All(1, 1));
  EXPECT_DOUBLE_EQ(quantized.forward, dense.forward + head);
  EXPECT_DOUBLE_EQ(quantized.backward, dense.backward + head);
  AdapterConfig trained;
  trained.modules_to_save = {"lm_head"};
  EXPECT_DOUBLE_EQ(StepOf(config, All(1, 1), Recompute::kNone, trained).forward, dense.forward);
}

TEST(FlopsTest, OfAPrefillAreForward) {
  const Flops dense = PrefillFlops(TinyConfig(), {}, kRows);
  EXPECT_EQ(dense.forward, 0);
  const Flops linears = PrefillFlops(TinyConfig(), All(1), kRows);
  EXPECT_DOUBLE_EQ(linears.forward, kRows * 2 * 2 * (kAttention + kMlp));
  const Flops all = PrefillFlops(TinyConfig(), All(1, 1), kRows);
  EXPECT_DOUBLE_EQ(all.forward, linears.forward + 2 * 23 * 16);
  EXPECT_EQ(all.backward, 0);
  EXPECT_DOUBLE_EQ(linears.sum(), dense.sum());
  EXPECT_DOUBLE_EQ(all.sum(), dense.sum());
}

// 8 bits make the limit higher for the products that are in 8 bits, and for no others.
TEST(FlopsTest, TheLimitIsThatOfTheOperands) {
  const auto seconds = [](FrozenProducts frozen) {
    const Precision precision = {DType::kBF16, DType::kF32, frozen};
    return SecondsOf({.forward = 80, .backward = 40, .others = 20},
                     LimitRates(precision, [](DType operands) {
                       return operands == DType::kI8 ? 8.0 : operands == DType::kBF16 ? 2.0 : 0.0;
                     }));
  };
  EXPECT_DOUBLE_EQ(seconds(FrozenProducts::kFloat), 40 + 20 + 10);
  EXPECT_DOUBLE_EQ(seconds(FrozenProducts::kInt8Forward), 10 + 20 + 10);
  EXPECT_DOUBLE_EQ(seconds(FrozenProducts::kInt8), 10 + 5 + 10);
}

}  // namespace
}  // namespace qlora
