#include "train/preference_watch.h"

#include <fmt/format.h>

#include <cmath>

namespace qlora {

void PreferenceWatch::Add(const StepResult& step) {
  const Signs signs{ValueOf(step.metrics, "rewards/accuracies"),
                    ValueOf(step.metrics, "rewards/chosen"), step.totals.samples};
  if (!step.applied || std::isnan(signs.accuracy)) return;
  if (std::ssize(newest_) == kSteps) newest_.erase(newest_.begin());
  newest_.push_back(signs);
}

std::vector<std::string> PreferenceWatch::Warnings() const {
  if (std::ssize(newest_) < kSteps) return {};
  double hits = 0;
  double chosen = 0;
  double pairs = 0;
  for (const Signs& step : newest_) {
    const auto n = static_cast<double>(step.pairs);
    hits += n * step.accuracy;
    chosen += n * step.chosen;
    pairs += n;
  }
  const double accuracy = hits / pairs;
  std::vector<std::string> warnings;
  // Two standard deviations of so many guesses.
  if (accuracy < 0.5 + 1 / std::sqrt(pairs)) {
    warnings.push_back(fmt::format(
        "rewards/accuracies is {:.2f} over the last {} steps, no better than chance: the answers "
        "are not told apart; train longer, raise learning_rate, or look at the pairs",
        accuracy, kSteps));
  }
  constexpr double kFarBelow = -10;
  if (chosen / pairs < kFarBelow) {
    warnings.push_back(fmt::format(
        "rewards/chosen is {:.1f} over the last {} steps: the chosen answers become less likely "
        "together with the rejected ones; set rpo_alpha, raise beta, or lower learning_rate",
        chosen / pairs, kSteps));
  }
  return warnings;
}

}  // namespace qlora
