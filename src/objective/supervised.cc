#include "objective/supervised.h"

#include <array>
#include <cmath>

#include "pass/loss.h"

namespace qlora {
namespace {

// The factor of the losses of a window in their mean.
double MeanOver(std::int64_t supervised) { return 1.0 / static_cast<double>(supervised); }

}  // namespace

std::span<const Metric> Supervised::metrics() const {
  static constexpr std::array<Metric, 3> kMetrics = {{
      {.name = "loss"},
      {.name = "perplexity", .in_steps = false},
      {.name = "token_accuracy", .higher_is_better = true},
  }};
  return kMetrics;
}

// The gradient of the mean loss over the window, not of a mean of means: micro-batches with more
// supervised tokens weigh more.
std::vector<float> Supervised::RowScale(const Batch& batch, const WindowTotals& totals) const {
  return std::vector<float>(batch.supervised(), static_cast<float>(MeanOver(totals.supervised)));
}

void Supervised::Run(const ObjectivePass& pass, LoraAdapter* trained,
                     std::span<double> sums) const {
  const LossSum sum =
      trained != nullptr
          ? LossAndGradient(pass.decoder, pass.inputs, pass.activations, *trained, label_smoothing_)
          : Loss(pass.decoder, pass.inputs, pass.activations, pass.logprobs);
  sums[0] = sum.loss;
  sums[1] = static_cast<double>(sum.hits);
}

std::vector<double> Supervised::Values(std::span<const double> sums,
                                       const WindowTotals& totals) const {
  const double loss = sums[0] * MeanOver(totals.supervised);
  return {loss, std::exp(loss), sums[1] / static_cast<double>(totals.supervised)};
}

}  // namespace qlora
