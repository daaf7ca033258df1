// The best evaluation of a run so far, for load_best_model_at_end and early stopping.
#ifndef QLORA_CHECKPOINT_BEST_EVALUATION_H_
#define QLORA_CHECKPOINT_BEST_EVALUATION_H_

#include <cstdint>

namespace qlora {

// Part of a checkpoint, so that a resumed run judges as an uninterrupted one.
struct BestEvaluation {
  double metric = 0;
  std::int64_t step = -1;       // -1: no evaluation yet
  std::int64_t since_best = 0;  // evaluations in a row that were not better than `metric`

  // Adds the metric of an evaluation and returns true when it is the best. Better means greater
  // with `greater`, otherwise smaller, and by more than `threshold`; NaN and Inf are never better.
  bool Add(std::int64_t at_step, double value, bool greater, double threshold);
};

}  // namespace qlora

#endif  // QLORA_CHECKPOINT_BEST_EVALUATION_H_
