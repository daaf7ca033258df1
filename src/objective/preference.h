// Preferences: losses of the log-probabilities of whole answers (preference/preference_loss.h),
// mean over the pairs or the answers of a window.
#ifndef QLORA_OBJECTIVE_PREFERENCE_H_
#define QLORA_OBJECTIVE_PREFERENCE_H_

#include "objective/objective.h"
#include "preference/preference_loss.h"

namespace qlora {

// Samples are pairs (preference/preference_pair.h), or answers with labels. The head runs twice:
// the factor of an answer's rows follows from the log-probabilities of both answers.
class PreferenceObjective : public Objective {
 public:
  explicit PreferenceObjective(PreferenceLossOptions options) : options_(std::move(options)) {}

  std::span<const Metric> metrics() const override;
  std::int64_t sums() const override;
  bool needs_reference() const override { return options_.needs_reference(); }
  bool needs_kl() const override { return options_.needs_kl(); }
  double ld_alpha() const override { return options_.ld_alpha; }
  std::vector<float> RowScale(const Batch& batch, const WindowTotals&) const override {
    return std::vector<float>(batch.supervised());
  }
  void Run(const ObjectivePass& pass, LoraAdapter* trained, std::span<double> sums) const override;
  std::vector<double> Values(std::span<const double> sums,
                             const WindowTotals& totals) const override;

 private:
  // Of each target.
  struct TokenScores {
    std::vector<double> logp;
    std::vector<double> hits;  // 1 for the model's first choice
    std::vector<double> mean_logit;
    std::vector<double> entropy;
    std::vector<double> log_power;  // with use_weighting: log of the sum of squared probabilities
  };
  TokenScores ScoresOf(const ObjectivePass& pass) const;
  void AddPair(const ObjectivePass& pass, const TokenScores& tokens,
               std::span<const std::int64_t> before, std::int64_t e, std::span<double> gradient,
               std::span<double> sums) const;
  void AddNll(const ObjectivePass& pass, const TokenScores& tokens,
              std::span<const std::int64_t> before, std::int64_t e, std::span<double> gradient,
              std::span<double> sums) const;
  void AddLabel(const ObjectivePass& pass, const TokenScores& tokens,
                std::span<const std::int64_t> before, std::int64_t e, std::span<double> gradient,
                std::span<double> sums) const;

  double NllCount(const WindowTotals& totals) const;
  // True for orpo, which stands alone.
  bool has_odds() const { return options_.terms.front().loss == PreferenceLoss::kOrpo; }

  PreferenceLossOptions options_;
};

}  // namespace qlora

#endif  // QLORA_OBJECTIVE_PREFERENCE_H_
