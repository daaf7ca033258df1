// The order in which gradients are added.
#include "step/gradient_tree.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

namespace qlora {
namespace {

constexpr std::int64_t kValues = 3 * 256;

// Values of many magnitudes, so that every order of additions gives other bits.
float LeafValue(std::int64_t leaf, std::int64_t i) {
  const auto x = static_cast<double>(1 + leaf * kValues + i);
  return static_cast<float>(std::sin(x) * std::exp(5 * std::sin(7 * x)));
}

// The definition of the tree.
float SumOf(std::int64_t begin, std::int64_t end, std::int64_t i) {
  if (end - begin == 1) return LeafValue(begin, i);
  const auto left =
      static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(end - begin - 1)));
  return SumOf(begin, begin + left, i) + SumOf(begin + left, end, i);
}

TEST(GradientTree, AddsAsTheTreeSays) {
  const std::unique_ptr<Backend> backend = MakeReferenceBackend();
  for (std::int64_t leaves = 1; leaves <= kReductionGroups; ++leaves) {
    std::vector<float> values(kValues);
    const MatrixView gradients = MakeView(values.data(), 1, kValues);
    GradientTree tree(HostMemory(), leaves, gradients);
    for (int window = 0; window < 2; ++window) {
      for (std::int64_t leaf = 0; leaf < leaves; ++leaf) {
        for (std::int64_t i = 0; i < kValues; ++i) values[i] = LeafValue(leaf, i);
        tree.AddLeaf(*backend, leaf, leaves, gradients);
      }
      for (std::int64_t i = 0; i < kValues; ++i) ASSERT_EQ(values[i], SumOf(0, leaves, i));
    }
  }
}

TEST(GradientTree, LeavesAreRunsOfMicroBatches) {
  for (std::int64_t count = 1; count <= 20; ++count) {
    const std::int64_t leaves = GradientTree::Leaves(count);
    EXPECT_EQ(leaves, std::min(count, kReductionGroups));
    EXPECT_EQ(GradientTree::LeafBegin(0, count), 0);
    EXPECT_EQ(GradientTree::LeafBegin(leaves, count), count);
    for (std::int64_t leaf = 0; leaf < leaves; ++leaf) {
      EXPECT_LT(GradientTree::LeafBegin(leaf, count), GradientTree::LeafBegin(leaf + 1, count));
    }
  }
}

TEST(GradientTree, TakesNoMemoryForOneMicroBatch) {
  std::vector<float> values(kValues);
  const MatrixView gradients = MakeView(values.data(), 1, kValues);
  EXPECT_EQ(GradientTree::Bytes(1, gradients), 0u);
  const std::vector<std::int64_t> buffers = {0, 1, 1, 2, 2, 2, 2, 3, 3};
  for (std::int64_t count = 1; count <= 9; ++count) {
    EXPECT_EQ(GradientTree::Buffers(count), buffers[count - 1]) << count;
  }
}

}  // namespace
}  // namespace qlora
