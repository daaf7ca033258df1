// A guard against forgetting: an objective beside which texts that it does not train on, the
// anchors of a window, keep the model near its base, the same weights without the adapter.
#ifndef QLORA_OBJECTIVE_ANCHORED_H_
#define QLORA_OBJECTIVE_ANCHORED_H_

#include <memory>
#include <vector>

#include "objective/objective.h"

namespace qlora {

// The gradient is that of the loss of the objective plus weight times anchor_kl, the mean of
// KL(p_base || p) over the predicted tokens of the anchors. Each is reported by itself. Of a pass
// without anchor it is the objective; evaluations have no anchors and report no anchor_kl.
class Anchored : public Objective {
 public:
  Anchored(std::shared_ptr<const Objective> objective, double weight);

  std::span<const Metric> metrics() const override { return metrics_; }
  std::int64_t sums() const override { return objective_->sums() + 1; }  // the divergence last
  bool needs_reference() const override { return objective_->needs_reference(); }
  double ld_alpha() const override { return objective_->ld_alpha(); }
  bool needs_kl() const override { return objective_->needs_kl(); }
  std::vector<float> RowScale(const Batch& batch, const WindowTotals& totals) const override {
    return objective_->RowScale(batch, totals);
  }
  void Run(const ObjectivePass& pass, LoraAdapter* trained, std::span<double> sums) const override;
  std::vector<double> Values(std::span<const double> sums,
                             const WindowTotals& totals) const override;

 private:
  std::shared_ptr<const Objective> objective_;
  double weight_;
  std::vector<Metric> metrics_;
};

}  // namespace qlora

#endif  // QLORA_OBJECTIVE_ANCHORED_H_
