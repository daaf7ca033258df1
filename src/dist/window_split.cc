#include "dist/window_split.h"

#include <algorithm>
#include <bit>

namespace qlora {
namespace {

// Adds the largest nodes below `node` that lie within `range`.
void AddSubtrees(const IndexRange& node, const IndexRange& range, std::vector<IndexRange>& found) {
  if (node.end <= range.begin || range.end <= node.begin) return;
  if (range.begin <= node.begin && node.end <= range.end) {
    found.push_back(node);
    return;
  }
  const std::int64_t split = SplitOf(node);
  AddSubtrees({node.begin, split}, range, found);
  AddSubtrees({split, node.end}, range, found);
}

}  // namespace

std::int64_t SplitOf(const IndexRange& node) {
  const auto left = std::bit_floor(static_cast<std::uint64_t>(node.size() - 1));
  return node.begin + static_cast<std::int64_t>(left);
}

std::int64_t WindowSplit::leaves() const { return std::min(micro_batches, reduction_groups); }

IndexRange WindowSplit::MicroBatchesOf(std::int64_t leaf) const {
  const std::int64_t count = leaves();
  return {leaf * micro_batches / count, (leaf + 1) * micro_batches / count};
}

IndexRange WindowSplit::LeavesOf(int replica) const {
  return {leaves() * replica / replicas, leaves() * (replica + 1) / replicas};
}

IndexRange WindowSplit::MicroBatchesOfReplica(int replica) const {
  const IndexRange mine = LeavesOf(replica);
  const std::int64_t count = leaves();
  return {mine.begin * micro_batches / count, mine.end * micro_batches / count};
}

std::vector<IndexRange> WindowSplit::SubtreesOf(int replica) const {
  std::vector<IndexRange> found;
  AddSubtrees({0, leaves()}, LeavesOf(replica), found);
  return found;
}

WindowSplit WindowSplit::WithMicroBatches(std::int64_t count) const {
  return {count, reduction_groups, replicas};
}

}  // namespace qlora
