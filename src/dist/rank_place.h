// The place of a rank among those that train together: which replica of the model it belongs to,
// and which stage of it.
//
//                stage 0          stage 1
//                layers 0 ... 10  layers 11 ... 21
//   replica 0    rank 0           rank 1             micro-batches 0, 1 of a step
//   replica 1    rank 2           rank 3             micro-batches 2, 3
#ifndef QLORA_DIST_RANK_PLACE_H_
#define QLORA_DIST_RANK_PLACE_H_

#include <cstdint>
#include <vector>

#include "base/index_range.h"
#include "dist/window_split.h"

namespace qlora {

struct RankPlace {
  int rank = 0;
  int of_host = 1;  // ranks that share the memory of the host; 0: the host is another machine
  int stages = 1;   // of a replica
  WindowSplit split = {};

  int ranks() const { return split.replicas * stages; }
  int stage() const { return rank % stages; }
  int replica() const { return rank / stages; }
  int RankOf(int of_replica, int of_stage) const { return of_replica * stages + of_stage; }
  bool is_first_stage() const { return stage() == 0; }
  bool is_last_stage() const { return stage() + 1 == stages; }
  // The micro-batches whose activations the stage keeps at a time: those that are on their way
  // through the stages behind it, and its own.
  std::int64_t in_flight() const;
};

// A share of the layers for each stage, of about the same number of operations; the output head
// counts too. cost: of each layer, in any unit.
std::vector<IndexRange> CutIntoStages(const std::vector<double>& cost, double head, int stages);

// What a stage does next.
struct StageOp {
  bool backward = false;
  std::int64_t micro_batch = 0;  // of the replica

  bool operator==(const StageOp&) const = default;
};
// The order of a stage for `count` micro-batches (1F1B; Narayanan et al., arXiv:2104.04473): as
// many forward passes as there are stages behind it, then one backward pass for each forward pass.
// Each kind is in the order of micro-batches, so that sums do not depend on the number of stages.
std::vector<StageOp> StageOpsOf(int stage, int stages, std::int64_t count);

}  // namespace qlora

#endif  // QLORA_DIST_RANK_PLACE_H_
