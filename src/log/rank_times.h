// What the ranks of a run spend their time on, over several steps.
#ifndef QLORA_LOG_RANK_TIMES_H_
#define QLORA_LOG_RANK_TIMES_H_

#include <cstdint>
#include <vector>

#include "qlora/train.h"

namespace qlora {

// Adds the seconds of a step to `sums`, which begin empty; of memory the largest counts.
void AddStep(const std::vector<RankReport>& step, std::vector<RankReport>& sums);

// Shares of the time of all ranks together; 0 of no time.
struct RankShares {
  double computing = 0;
  double waiting = 0;
  std::int64_t slowest = 0;  // the rank that computes longest: others wait for it
};
RankShares SharesOf(const std::vector<RankReport>& sums);

}  // namespace qlora

#endif  // QLORA_LOG_RANK_TIMES_H_
