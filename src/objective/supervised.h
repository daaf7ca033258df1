// Supervised training: the mean of -log p over the supervised tokens.
#ifndef QLORA_OBJECTIVE_SUPERVISED_H_
#define QLORA_OBJECTIVE_SUPERVISED_H_

#include "objective/objective.h"

namespace qlora {

class Supervised : public Objective {
 public:
  // label_smoothing: of the loss of training, as ops::CrossEntropy has it.
  explicit Supervised(double label_smoothing = 0) : label_smoothing_(label_smoothing) {}

  std::span<const Metric> metrics() const override;
  std::int64_t sums() const override { return 2; }  // losses, hits
  std::vector<float> RowScale(const Batch& batch, const WindowTotals& totals) const override;
  void Run(const ObjectivePass& pass, LoraAdapter* trained, std::span<double> sums) const override;
  std::vector<double> Values(std::span<const double> sums,
                             const WindowTotals& totals) const override;

 private:
  double label_smoothing_;
};

}  // namespace qlora

#endif  // QLORA_OBJECTIVE_SUPERVISED_H_
