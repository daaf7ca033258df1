#include "objective/decision.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "pass/loss.h"

namespace qlora {
namespace {

// The logits of the labels of a choice among all V.
std::vector<double> LabelLogits(const Choice& choice, std::span<const double> logits) {
  std::vector<double> z;
  for (const std::int32_t label : choice.labels) z.push_back(logits[label]);
  return z;
}

// The probability that the whole vocabulary gives to the labels.
double LabelMass(std::span<const double> label_logits, std::span<const double> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  const auto sum = [&](std::span<const double> values) {
    double total = 0;
    for (const double value : values) total += std::exp(value - largest);
    return total;
  };
  return sum(label_logits) / sum(logits);
}

}  // namespace

std::span<const Metric> DecisionObjective::metrics() const {
  static constexpr std::array<Metric, 5> kMetrics = {{
      {.name = "loss"},
      {.name = "accuracy", .higher_is_better = true},
      {.name = "brier"},
      {.name = "label_mass", .higher_is_better = true},
      {.name = "questions", .higher_is_better = true},
  }};
  return kMetrics;
}

void DecisionObjective::Run(const ObjectivePass& pass, LoraAdapter* trained,
                            std::span<double> sums) const {
  const std::vector<Choice>& choices = pass.batch.choices;
  if (std::ssize(choices) != pass.inputs.head_rows.size) {
    ThrowRuntime("decisions: {} choices, and {} rows with a target", choices.size(),
                 pass.inputs.head_rows.size);
  }
  std::fill(sums.begin(), sums.end(), 0.0);
  // Losses of evaluations can be compared between runs.
  DecisionLossOptions options = options_;
  if (trained == nullptr) options.label_smoothing = 0;
  const double scale = 1.0 / static_cast<double>(pass.totals.supervised);
  ForEachLogits(pass.decoder, pass.inputs, pass.activations, trained,
                [&](std::int64_t row, std::span<const double> logits) {
                  const Choice& choice = choices[row];
                  const auto type = static_cast<QuestionType>(choice.kind);
                  const std::vector<double> z = LabelLogits(choice, logits);
                  const std::vector<double> p = Softmax(std::span<const double>(z));
                  const std::vector<double>& t = choice.targets;
                  sums[0] += DecisionLoss(std::span<const double>(z), std::span<const double>(t),
                                          type, options);
                  sums[1] += FirstLargest(p) == FirstLargest(t) ? 1 : 0;
                  for (std::size_t k = 0; k < p.size(); ++k)
                    sums[2] += (p[k] - t[k]) * (p[k] - t[k]);
                  sums[3] += LabelMass(z, logits);
                  if (pass.logprobs != nullptr) {
                    pass.logprobs->insert(pass.logprobs->end(), z.begin(), z.end());
                  }
                  std::vector<double> gradient = DecisionLossGradient(z, t, type, options);
                  for (double& value : gradient) value *= scale;
                  return LogitGradient{choice.labels, std::move(gradient)};
                });
}

std::vector<double> DecisionObjective::Values(std::span<const double> sums,
                                              const WindowTotals& totals) const {
  std::vector<double> values;
  const auto questions = static_cast<double>(totals.supervised);
  for (const double sum : sums) values.push_back(sum / questions);
  values.push_back(questions);
  return values;
}

}  // namespace qlora
