#include "dist/rank_place.h"

#include <algorithm>
#include <bit>
#include <numeric>

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

// A window at the end of an epoch may give a replica more than a full one does.
std::int64_t RankPlace::in_flight() const {
  std::int64_t most = 1;
  for (std::int64_t count = 1; count <= split.micro_batches && most < stages - stage(); ++count) {
    most = std::max(most, split.WithMicroBatches(count).MicroBatchesOfReplica(replica()).size());
  }
  return std::min<std::int64_t>(most, stages - stage());
}

// Stage s ends where the sum of costs passes its share, and has a layer at least.
std::vector<IndexRange> CutIntoStages(const std::vector<double>& cost, double head, int stages) {
  const double total = std::accumulate(cost.begin(), cost.end(), head);
  const std::int64_t layers = std::ssize(cost);
  std::vector<IndexRange> ranges;
  std::int64_t begin = 0;
  double sum = 0;
  for (int stage = 0; stage < stages; ++stage) {
    const std::int64_t most = layers - (stages - stage - 1);  // leaves a layer to each that follows
    std::int64_t end = begin;
    while (end < most && (end == begin || stage + 1 == stages ||
                          sum + cost[end] / 2 <= total * (stage + 1) / stages)) {
      sum += cost[end++];
    }
    ranges.push_back({begin, end});
    begin = end;
  }
  return ranges;
}

std::vector<StageOp> StageOpsOf(int stage, int stages, std::int64_t count) {
  std::vector<StageOp> ops;
  const std::int64_t ahead = std::min<std::int64_t>(stages - 1 - stage, count);
  for (std::int64_t m = 0; m < ahead; ++m) ops.push_back({false, m});
  for (std::int64_t m = 0; m < count; ++m) {
    if (m + ahead < count) ops.push_back({false, m + ahead});
    ops.push_back({true, m});
  }
  return ops;
}

}  // namespace qlora
