#include "objective/anchored.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "pass/loss.h"

namespace qlora {

Anchored::Anchored(std::shared_ptr<const Objective> objective, double weight)
    : objective_(std::move(objective)),
      weight_(weight),
      metrics_(objective_->metrics().begin(), objective_->metrics().end()) {
  metrics_.push_back({.name = "anchor_kl", .in_evals = false});
}

void Anchored::Run(const ObjectivePass& pass, LoraAdapter* trained, std::span<double> sums) const {
  if (pass.base.empty()) {
    sums.back() = 0;
    objective_->Run(pass, trained, sums.first(sums.size() - 1));
    return;
  }
  std::fill(sums.begin(), sums.end(), 0.0);
  sums.back() =
      Divergence(pass.decoder, pass.inputs, pass.base,
                 weight_ / static_cast<double>(pass.totals.anchors), pass.activations, trained);
  // A step without a usable divergence has no usable loss.
  if (!std::isfinite(sums.back())) sums.front() = sums.back();
}

std::vector<double> Anchored::Values(std::span<const double> sums,
                                     const WindowTotals& totals) const {
  std::vector<double> values = objective_->Values(sums.first(sums.size() - 1), totals);
  values.push_back(totals.anchors > 0 ? sums.back() / static_cast<double>(totals.anchors)
                                      : std::numeric_limits<double>::quiet_NaN());
  return values;
}

}  // namespace qlora
