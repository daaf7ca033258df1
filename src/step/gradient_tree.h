// The order in which the gradients of a window's micro-batches are added: a fixed binary tree.
//
// The M micro-batches of a window form V = min(M, reduction_groups) groups of consecutive
// micro-batches. A group is a leaf of the tree: its micro-batches add to one gradient, from zero.
// The left child of a node takes the largest power of two of leaves below the number of leaves of
// the node. V = 7, on three ranks:
//
//   leaf    0   1   2   3   4   5   6
//            \ /     \ /     \ /    |
//             +       +       +     |
//              \     /         \    |
//                 +               +
//                   \           /
//                         sum
//   rank    0   0   1   1   2   2   2
//
// The sum of a subtree does not depend on who computes the other subtrees. A rank has consecutive
// leaves. It adds up the largest subtrees within them and sends slice r of each to rank r, which
// adds the slices as the tree says; then the slices of the sum go to everyone. So any number of
// ranks gets the bits of one, and nothing but bytes is left to the engine between them.
#ifndef QLORA_STEP_GRADIENT_TREE_H_
#define QLORA_STEP_GRADIENT_TREE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "base/arena.h"
#include "qlora/communicator.h"

namespace qlora {

// Consecutive leaves, or micro-batches: [begin, end).
struct IndexRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
  bool operator==(const IndexRange&) const = default;
};

// How the micro-batches of a window are shared out.
struct WindowSplit {
  std::int64_t micro_batches = 1;     // M, of all ranks
  std::int64_t reduction_groups = 8;  // the most leaves
  int ranks = 1;

  std::int64_t leaves() const;  // V
  // The micro-batches of a leaf. Leaves differ by at most one micro-batch in size.
  IndexRange MicroBatchesOf(std::int64_t leaf) const;
  // The leaves of a rank, and their micro-batches. Ranks differ by at most one leaf; without enough
  // leaves some ranks have none.
  IndexRange LeavesOf(int rank) const;
  IndexRange MicroBatchesOfRank(int rank) const;
  // The largest subtrees within the leaves of a rank, left to right.
  std::vector<IndexRange> SubtreesOf(int rank) const;
  // The same ranks and groups, for a window at the end of an epoch.
  WindowSplit WithMicroBatches(std::int64_t count) const;
};

class GradientTree {
 public:
  // Adds gradients of n values, a multiple of 256, as `rank` of a split, for windows of up to
  // split.micro_batches micro-batches.
  GradientTree(Memory& memory, const WindowSplit& split, int rank,
               const ConstMatrixView& gradients);
  static std::size_t Bytes(const WindowSplit& split, int rank, const ConstMatrixView& gradients);
  // What `rank` sends to the others for the sum of a full window.
  static std::size_t BytesSent(const WindowSplit& split, int rank,
                               const ConstMatrixView& gradients);

  const WindowSplit& split() const { return split_; }

  // Called for each leaf of this rank in order, with the gradient of that leaf, whose values are no
  // longer needed after that. window: of this split.
  void AddLeaf(Backend& backend, const WindowSplit& window, std::int64_t leaf,
               MatrixView gradients);
  // After the last leaf: leaves the sum of the window in `gradients`, on every rank.
  void Finish(Backend& backend, Communicator& communicator, const WindowSplit& window,
              MatrixView gradients);

 private:
  WindowSplit split_;
  int rank_;
  Arena arena_;
  std::vector<MatrixView> waiting_;  // (1, n) each: sums of subtrees, left to right
  std::vector<IndexRange> held_;     // the leaves of those in use, and at last those of `gradients`
  MatrixView received_;              // (subtrees of all ranks, the longest slice)
};

}  // namespace qlora

#endif  // QLORA_STEP_GRADIENT_TREE_H_
