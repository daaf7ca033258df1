#include "checkpoint/best_evaluation.h"

#include <cmath>

namespace qlora {

bool BestEvaluation::Add(std::int64_t at_step, double value, bool greater, double threshold) {
  // The first finite evaluation is the best whatever the threshold is. A NaN counts as an
  // evaluation without improvement, so a run whose model is broken stops early too.
  const double gain = greater ? value - metric : metric - value;
  const bool better = std::isfinite(value) && (step < 0 || gain > threshold);
  if (!better) {
    ++since_best;
    return false;
  }
  metric = value;
  step = at_step;
  since_best = 0;
  return true;
}

}  // namespace qlora
