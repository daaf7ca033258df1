// The order in which the gradients of a window's micro-batches are added: a fixed binary tree.
//
// The M micro-batches of a window form V = min(M, kReductionGroups) groups of consecutive
// micro-batches. A group is a leaf of the tree: its micro-batches add to one gradient, from zero.
// The left child of a node takes the largest power of two of leaves below the number of leaves of
// the node. V = 7:
//
//   leaf    0   1   2   3   4   5   6
//            \ /     \ /     \ /    |
//             +       +       +     |
//              \     /         \    |
//                 +               +
//                   \           /
//                         sum
//
// The sum of a subtree does not depend on who computes the other subtrees, so processes that share
// the micro-batches of a window get the bits of a single process.
#ifndef QLORA_STEP_GRADIENT_TREE_H_
#define QLORA_STEP_GRADIENT_TREE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "base/arena.h"

namespace qlora {

// The largest number of leaves.
inline constexpr std::int64_t kReductionGroups = 8;

class GradientTree {
 public:
  // Adds gradients of n values, a multiple of 256, for windows of up to `micro_batches`
  // micro-batches.
  GradientTree(Memory& memory, std::int64_t micro_batches, const ConstMatrixView& gradients);

  // The number of leaves of a window.
  static std::int64_t Leaves(std::int64_t micro_batches);
  // The first micro-batch of leaf v = 0 ... Leaves(); for leaf Leaves() it is micro_batches.
  static std::int64_t LeafBegin(std::int64_t leaf, std::int64_t micro_batches);
  // The most left siblings that wait for their right sibling.
  static std::int64_t Buffers(std::int64_t micro_batches);
  static std::size_t Bytes(std::int64_t micro_batches, const ConstMatrixView& gradients);

  // Called for each leaf in order, with the gradient of that leaf. After the last leaf `gradients`
  // holds the sum of the window; after any other leaf its values are no longer needed.
  void AddLeaf(Backend& backend, std::int64_t leaf, std::int64_t leaves, MatrixView gradients);

 private:
  Arena arena_;
  std::vector<MatrixView> waiting_;  // (1, n) each: sums of left siblings, largest subtree first
  std::int64_t depth_ = 0;           // how many of them are in use
};

}  // namespace qlora

#endif  // QLORA_STEP_GRADIENT_TREE_H_
