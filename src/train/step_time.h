// How long a run takes on this machine (EstimateTime), the arithmetic of its steps over the rate
// of products, which a short probe measures; and how near each step comes to the arithmetic limit.
#ifndef QLORA_TRAIN_STEP_TIME_H_
#define QLORA_TRAIN_STEP_TIME_H_

#include <cstdint>

#include "objective/objective.h"
#include "pass/flops.h"
#include "pass/product_rates.h"
#include "qlora/train.h"

namespace qlora {

// FLOPs of the steps that are left of a run, of all ranks, those of its anchor included.
Flops RemainingFlops(const TrainPlan& plan);

// The time of these FLOPs, with what is beside products, in products that are this fast: `plain`
// with operands of the type of activations, `bf16` and `coded` as compute_dtype int8 has them,
// those with quantized weights in `coded`. frozen: of the run.
TimeEstimate EstimateOf(const Flops& flops, FrozenProducts frozen, const ProductRates& plain,
                        const ProductRates& bf16, const ProductRates& coded);

// The share of the arithmetic limit that steps of a run reach: the time that the limit takes for
// the multiplications and additions that a step needs with any kernels, what it computes again
// included, and the time that it took.
class StepLimit {
 public:
  // rates: the limit of this rank (LimitRates), which counts once for each rank. The plan must
  // outlive this.
  StepLimit(const TrainPlan& plan, const FlopRates& rates);

  // Of a step with these totals. Texts count as long as those of the data are on average.
  double ShareOf(const WindowTotals& totals, double seconds) const;

 private:
  const PreparedRun& run_;
  std::int64_t length_;  // of a text
  Flops anchor_;         // of a step
  FlopRates rates_;      // of each rank
  double ranks_;
};

}  // namespace qlora

#endif  // QLORA_TRAIN_STEP_TIME_H_
