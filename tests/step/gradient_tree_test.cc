// The order in which gradients are added.
#include "step/gradient_tree.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <memory>
#include <vector>

#include "dist/thread_ranks.h"

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

// The sum of a window of `count` micro-batches as each rank gets it.
std::vector<std::vector<float>> SumOn(const WindowSplit& split, std::int64_t count) {
  std::vector<std::vector<float>> sums(static_cast<std::size_t>(split.replicas));
  OnRanks(split.replicas, [&](Communicator& communicator) {
    const std::unique_ptr<Backend> backend = MakeReferenceBackend();
    std::vector<float> values(kValues, std::nanf(""));
    const MatrixView gradients = MakeView(values.data(), 1, kValues);
    GradientTree tree(HostMemory(), {communicator.rank(), 1, 1, split}, gradients);
    for (const std::int64_t window_size : {split.micro_batches, count}) {
      const WindowSplit window = split.WithMicroBatches(window_size);
      const IndexRange mine = window.LeavesOf(communicator.rank());
      for (std::int64_t leaf = mine.begin; leaf < mine.end; ++leaf) {
        for (std::int64_t i = 0; i < kValues; ++i) values[i] = LeafValue(leaf, i);
        tree.AddLeaf(*backend, window, leaf, gradients);
      }
      tree.Finish(*backend, communicator, window, gradients);
    }
    sums[communicator.rank()] = values;
  });
  return sums;
}

// On any number of ranks, also where some have no leaf or no slice, after a window of another size.
TEST(GradientTree, AddsAsTheTreeSays) {
  for (const int ranks : {1, 2, 3, 4, 5, 8, 9}) {
    for (const std::int64_t groups : {9, 16}) {
      for (std::int64_t count = 1; count <= groups; count += 1 + count / 7) {
        const WindowSplit split{groups, groups, ranks};
        for (const std::vector<float>& sum : SumOn(split, count)) {
          for (std::int64_t i = 0; i < kValues; ++i) {
            ASSERT_EQ(sum[i], SumOf(0, count, i)) << ranks << " " << groups << " " << count;
          }
        }
      }
    }
  }
}

TEST(GradientTree, LeavesAreRunsOfMicroBatches) {
  for (std::int64_t count = 1; count <= 20; ++count) {
    for (const int ranks : {1, 3, 8}) {
      const WindowSplit window{count, 8, ranks};
      EXPECT_EQ(window.leaves(), std::min<std::int64_t>(count, 8));
      std::int64_t next = 0;
      for (std::int64_t leaf = 0; leaf < window.leaves(); ++leaf) {
        EXPECT_EQ(window.MicroBatchesOf(leaf).begin, next);
        next = window.MicroBatchesOf(leaf).end;
        EXPECT_GT(window.MicroBatchesOf(leaf).size(), 0);
      }
      EXPECT_EQ(next, count);
      next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const IndexRange mine = window.MicroBatchesOfReplica(rank);
        EXPECT_EQ(mine.begin, next);
        next = mine.end;
      }
      EXPECT_EQ(next, count);
    }
  }
}

// Two ranks of eight leaves have a subtree each, the least that any exchange can send.
TEST(GradientTree, SendsEachValueTwice) {
  std::vector<float> values(kValues);
  const MatrixView gradients = MakeView(values.data(), 1, kValues);
  const std::size_t bytes = kValues * sizeof(float);
  const std::vector<IndexRange> all = {{0, kValues}};
  EXPECT_EQ(GradientTree::BytesSent({1, 1, 1, {8, 8, 2}}, all, gradients),
            bytes / 3 + 2 * bytes / 3);
  EXPECT_EQ(GradientTree::BytesSent({0, 1, 1, {8, 8, 1}}, all, gradients), 0u);
}

TEST(GradientTree, TakesNoMemoryForOneMicroBatch) {
  std::vector<float> values(kValues);
  const MatrixView gradients = MakeView(values.data(), 1, kValues);
  EXPECT_EQ(GradientTree::Bytes({0, 1, 1, {1, 8, 1}}, {{0, kValues}}, gradients), 0u);
}

}  // namespace
}  // namespace qlora
