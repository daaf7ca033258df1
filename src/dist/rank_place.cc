#include "dist/rank_place.h"

#include <algorithm>
#include <numeric>

namespace qlora {

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
