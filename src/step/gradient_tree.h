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
// ranks gets the bits of one, and nothing but bytes is left to the engine between them. Where the
// replicas of a model are cut into stages (rank_place.h), the ranks of one stage add up the
// gradients of its layers, and then the stages exchange them.
#ifndef QLORA_STEP_GRADIENT_TREE_H_
#define QLORA_STEP_GRADIENT_TREE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "base/arena.h"
#include "base/index_range.h"
#include "dist/rank_place.h"
#include "dist/window_split.h"
#include "qlora/communicator.h"

namespace qlora {

class GradientTree {
 public:
  // Adds gradients of n values, a multiple of 256, on the rank at `place`, for windows of up to
  // place.split.micro_batches micro-batches. parts: of those values, which each stage computes, in
  // blocks of 256; one stage has all of them.
  GradientTree(Memory& memory, const RankPlace& place, std::vector<std::vector<IndexRange>> parts,
               const ConstMatrixView& gradients);
  // The same for one stage.
  GradientTree(Memory& memory, const RankPlace& place, const ConstMatrixView& gradients)
      : GradientTree(memory, place, {{{0, gradients.cols}}}, gradients) {}
  static std::size_t Bytes(const RankPlace& place, const std::vector<IndexRange>& parts_of_stage,
                           const ConstMatrixView& gradients);
  // What a rank sends to the others for the sum of a full window.
  static std::size_t BytesSent(const RankPlace& place,
                               const std::vector<IndexRange>& parts_of_stage,
                               const ConstMatrixView& gradients);

  const RankPlace& place() const { return place_; }

  // Called for each leaf of this replica in order, with the gradient of that leaf, whose values are
  // no longer needed after that. window: of the split of this place.
  void AddLeaf(Backend& backend, const WindowSplit& window, std::int64_t leaf,
               MatrixView gradients);
  // After the last leaf: leaves the sum of the window in `gradients`, on every rank.
  void Finish(Backend& backend, Communicator& communicator, const WindowSplit& window,
              MatrixView gradients);
  // Gives every rank the values (1, n) in `memory` that stages have computed, each its parts.
  void ShareStages(Communicator& communicator, Memory& memory, MatrixView values) const;

 private:
  // The sum over replicas of the values in one part.
  void AddOverReplicas(Backend& backend, Communicator& communicator, const WindowSplit& window,
                       const IndexRange& part, MatrixView gradients);

  RankPlace place_;
  std::vector<std::vector<IndexRange>> parts_;  // of each stage
  Arena arena_;
  std::vector<MatrixView> waiting_;  // (1, n) each: sums of subtrees, left to right
  std::vector<IndexRange> held_;     // the leaves of those in use, and at last those of `gradients`
  MatrixView received_;              // (subtrees of all replicas, the longest slice)
};

}  // namespace qlora

#endif  // QLORA_STEP_GRADIENT_TREE_H_
