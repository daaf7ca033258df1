// The share of each replica in a step, and the leaves of the tree in which gradients are added.
#ifndef QLORA_DIST_WINDOW_SPLIT_H_
#define QLORA_DIST_WINDOW_SPLIT_H_

#include <cstdint>
#include <vector>

#include "base/index_range.h"

namespace qlora {

// How the micro-batches of a window are shared out.
struct WindowSplit {
  std::int64_t micro_batches = 1;     // M, of all replicas
  std::int64_t reduction_groups = 8;  // the most leaves of the gradient tree (gradient_tree.h)
  int replicas = 1;

  std::int64_t leaves() const;  // V
  // The micro-batches of a leaf. Leaves differ by at most one micro-batch in size.
  IndexRange MicroBatchesOf(std::int64_t leaf) const;
  // The leaves of a replica, and their micro-batches. Replicas differ by at most one leaf; without
  // enough leaves some replicas have none.
  IndexRange LeavesOf(int replica) const;
  IndexRange MicroBatchesOfReplica(int replica) const;
  // The largest subtrees of the gradient tree within the leaves of a replica, left to right.
  std::vector<IndexRange> SubtreesOf(int replica) const;
  // The same split, for a window at the end of an epoch.
  WindowSplit WithMicroBatches(std::int64_t count) const;
};

// Where the leaves of a node of the gradient tree part: its left child takes the largest power of
// two of leaves below their number.
std::int64_t SplitOf(const IndexRange& node);

}  // namespace qlora

#endif  // QLORA_DIST_WINDOW_SPLIT_H_
