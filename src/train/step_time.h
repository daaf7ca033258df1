// How long a run takes on this machine (EstimateTime), the arithmetic of its steps over the rate
// of products, which a short probe measures; and how near each step comes to the arithmetic limit.
#ifndef QLORA_TRAIN_STEP_TIME_H_
#define QLORA_TRAIN_STEP_TIME_H_

#include <cstdint>

#include "objective/objective.h"
#include "qlora/train.h"

namespace qlora {

// FLOPs of the steps that are left of a run, of all ranks, those of its anchor included.
double RemainingFlops(const TrainPlan& plan);

// The share of the arithmetic limit that steps of a run reach: the multiplications and additions
// that a step needs with any kernels, what it computes again included, and those of the limit in
// the same time.
class StepLimit {
 public:
  // peak: FLOP/s of this rank (MeasurePeak), which counts once for each rank. The plan must outlive
  // this.
  StepLimit(const TrainPlan& plan, double peak);

  // Of a step with these totals. Texts count as long as those of the data are on average.
  double ShareOf(const WindowTotals& totals, double seconds) const;

 private:
  const PreparedRun& run_;
  std::int64_t length_;  // of a text
  double anchor_;        // FLOPs of the anchor of a step
  double peak_;          // FLOP/s of all ranks
};

}  // namespace qlora

#endif  // QLORA_TRAIN_STEP_TIME_H_
