#include "log/rank_times.h"

#include <algorithm>

namespace qlora {

void AddStep(const std::vector<RankReport>& step, std::vector<RankReport>& sums) {
  sums.resize(step.size());
  for (std::int64_t rank = 0; rank < std::ssize(step); ++rank) {
    sums[rank].computing_seconds += step[rank].computing_seconds;
    sums[rank].waiting_seconds += step[rank].waiting_seconds;
    sums[rank].memory_bytes = std::max(sums[rank].memory_bytes, step[rank].memory_bytes);
  }
}

RankShares SharesOf(const std::vector<RankReport>& sums) {
  RankShares shares;
  for (std::int64_t rank = 0; rank < std::ssize(sums); ++rank) {
    shares.computing += sums[rank].computing_seconds;
    shares.waiting += sums[rank].waiting_seconds;
    if (sums[rank].computing_seconds > sums[shares.slowest].computing_seconds) {
      shares.slowest = rank;
    }
  }
  const double all = shares.computing + shares.waiting;
  if (all > 0) {
    shares.computing /= all;
    shares.waiting /= all;
  }
  return shares;
}

}  // namespace qlora
