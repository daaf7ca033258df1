#include "objective/preference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "objective/answer_logprobs.h"
#include "pass/loss.h"

namespace qlora {
namespace {

// Sums of pairs, and of answers with labels: the loss first.
enum PairSum {
  kLoss,
  kChosenReward,
  kRejectedReward,
  kHits,
  kChosenLogp,
  kRejectedLogp,
  kChosenLogits,
  kRejectedLogits,
  kChosenTokens,
  kRejectedTokens,
  kChosenHits,
  kEntropy,
  kNll,
  kLogOdds,
  kLogOddsRatio,
  kPairSums
};
enum LabelSum {
  kDesirable = 1,
  kUndesirable,
  kDesirableReward,
  kUndesirableReward,
  kDesirableLogp,
  kUndesirableLogp,
  kDesirableLogits,
  kUndesirableLogits,
  kDesirableTokens,
  kUndesirableTokens,
  kLabelEntropy,
  kLabelSums
};

double ReferenceOf(const Batch& batch, const AnswerTokens& answer) {
  if (std::ssize(batch.reference) != batch.sequences()) {
    ThrowRuntime("preferences: {} log-probabilities of the reference for {} sequences",
                 batch.reference.size(), batch.sequences());
  }
  return batch.reference[answer.sequence];
}

// log of the sum of p^2 over the vocabulary.
double LogPower(std::span<const double> logits, double log_sum) {
  double sum = 0;
  for (const double logit : logits) sum += std::exp(2 * (logit - log_sum));
  return std::log(sum);
}

double LogSumExp(std::span<const double> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

// NaN where there is none to take the mean of.
double Mean(double sum, double count) {
  return count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

std::span<const Metric> PreferenceObjective::metrics() const {
  static constexpr std::array<Metric, 14> kPairs = {{
      {.name = "loss"},
      {.name = "rewards/chosen", .higher_is_better = true},
      {.name = "rewards/rejected"},
      {.name = "rewards/margins", .higher_is_better = true},
      {.name = "rewards/accuracies", .higher_is_better = true},
      {.name = "logps/chosen", .higher_is_better = true},
      {.name = "logps/rejected"},
      {.name = "logits/chosen"},
      {.name = "logits/rejected"},
      {.name = "mean_token_accuracy", .higher_is_better = true},
      {.name = "entropy"},
      {.name = "nll_loss"},
      {.name = "log_odds_chosen", .higher_is_better = true},
      {.name = "log_odds_ratio", .higher_is_better = true},
  }};
  static constexpr std::array<Metric, 10> kLabels = {{
      {.name = "loss"},
      {.name = "rewards/chosen", .higher_is_better = true},
      {.name = "rewards/rejected"},
      {.name = "rewards/margins", .higher_is_better = true},
      {.name = "logps/chosen", .higher_is_better = true},
      {.name = "logps/rejected"},
      {.name = "logits/chosen"},
      {.name = "logits/rejected"},
      {.name = "entropy"},
      {.name = "kl"},
  }};
  if (options_.family() == LossFamily::kLabels) {
    return std::span(kLabels).first(options_.needs_kl() ? 10 : 9);
  }
  return std::span(kPairs).first(has_odds() ? 14 : options_.nll_weight > 0 ? 12 : 11);
}

std::int64_t PreferenceObjective::sums() const {
  return options_.family() == LossFamily::kLabels ? std::int64_t{kLabelSums}
                                                  : std::int64_t{kPairSums};
}

PreferenceObjective::TokenScores PreferenceObjective::ScoresOf(const ObjectivePass& pass) const {
  // As the reference was measured, so that a model equal to it has rewards of 0.
  RowScores rows = ScoresOfRows(pass.decoder, pass.inputs, pass.activations);
  TokenScores tokens{std::move(rows.logprobs),
                     std::move(rows.hits),
                     std::move(rows.mean_logits),
                     std::move(rows.entropies),
                     {}};
  if (!options_.use_weighting) return tokens;
  ForEachLogits(pass.decoder, pass.inputs, pass.activations, nullptr,
                [&](std::int64_t /*row*/, std::span<const double> logits) {
                  tokens.log_power.push_back(LogPower(logits, LogSumExp(logits)));
                  return LogitGradient{};
                });
  return tokens;
}

// gradient (M): of the loss of the window with respect to the log-probability of each target.
void PreferenceObjective::Run(const ObjectivePass& pass, LoraAdapter* trained,
                              std::span<double> sums) const {
  std::fill(sums.begin(), sums.end(), 0.0);
  const Batch& batch = pass.batch;
  const TokenScores tokens = ScoresOf(pass);
  const std::vector<std::int64_t> before = TargetsBefore(batch);
  const bool nll = options_.nll_weight > 0;
  std::vector<double> gradient(tokens.logp.size());
  for (std::int64_t e = 0; e + 1 < std::ssize(batch.sample_begin); ++e) {
    if (options_.family() == LossFamily::kLabels) {
      AddLabel(pass, tokens, before, e, gradient, sums);
    } else {
      AddPair(pass, tokens, before, e, gradient, sums);
      if (nll) AddNll(pass, tokens, before, e, gradient, sums);
    }
  }
  if (pass.logprobs != nullptr) {
    pass.logprobs->insert(pass.logprobs->end(), tokens.logp.begin(), tokens.logp.end());
  }
  // A sum of pairs may be finite where -log p is not.
  if (nll && !std::isfinite(sums[kNll])) sums[kLoss] = sums[kNll];
  if (trained == nullptr || !std::isfinite(sums[kLoss])) return;
  std::vector<float> scale;
  for (const double value : gradient) scale.push_back(static_cast<float>(-value));
  SetRowScale(pass.decoder, scale, pass.inputs, pass.activations);
  LossAndGradient(pass.decoder, pass.inputs, pass.activations, *trained);
}

void PreferenceObjective::AddPair(const ObjectivePass& pass, const TokenScores& tokens,
                                  std::span<const std::int64_t> before, std::int64_t e,
                                  std::span<double> gradient, std::span<double> sums) const {
  const std::vector<AnswerTokens> answers = AnswersOf(pass.batch, before, e);
  if (answers.size() != 2) ThrowRuntime("a pair has {} answers", answers.size());
  const std::int64_t shorter = std::min(answers[0].tokens(), answers[1].tokens());
  double logp[2] = {0, 0};
  double logits[2] = {0, 0};
  double weight = 1;
  for (int side = 0; side < 2; ++side) {
    const AnswerTokens& answer = answers[side];
    double sure = 0;
    for (std::int64_t t = 0; t < answer.tokens(); ++t) {
      const double token = tokens.logp[answer.begin + t];
      logp[side] += TokenWeight(t, shorter, options_.ld_alpha) * token;
      logits[side] += tokens.mean_logit[answer.begin + t];
      sums[kEntropy] += tokens.entropy[answer.begin + t];
      if (side == 0) sums[kChosenHits] += tokens.hits[answer.begin + t];
      if (options_.use_weighting) sure += token - tokens.log_power[answer.begin + t];
    }
    weight *= std::exp(sure / static_cast<double>(answer.tokens()));
  }
  PairLogprobs<double> pair{logp[0], logp[1]};
  pair.chosen_tokens = static_cast<double>(answers[0].tokens());
  pair.rejected_tokens = static_cast<double>(answers[1].tokens());
  if (options_.needs_reference()) {
    pair.ref_chosen = ReferenceOf(pass.batch, answers[0]);
    pair.ref_rejected = ReferenceOf(pass.batch, answers[1]);
  }
  const auto samples = static_cast<double>(pass.totals.samples);
  double slope[2] = {0, 0};
  for (const PreferenceTerm& term : options_.terms) {
    const double factor = weight * term.weight;
    sums[kLoss] += factor * PairLoss(term.loss, pair, options_);
    const PairGradient one = PairLossGradient(term.loss, pair, options_);
    slope[0] += factor / samples * one.chosen;
    slope[1] += factor / samples * one.rejected;
  }
  for (int side = 0; side < 2; ++side) {
    for (std::int64_t t = 0; t < answers[side].tokens(); ++t) {
      gradient[answers[side].begin + t] += slope[side] * TokenWeight(t, shorter, options_.ld_alpha);
    }
  }
  const PairRewards rewards = RewardsOf(pair, options_);
  sums[kChosenReward] += rewards.chosen;
  sums[kRejectedReward] += rewards.rejected;
  sums[kHits] += rewards.chosen > rewards.rejected ? 1 : 0;
  const bool means =
      options_.family() == LossFamily::kOwn && TakesMeans(options_.terms.front().loss);
  sums[kChosenLogp] += means ? pair.chosen / pair.chosen_tokens : pair.chosen;
  sums[kRejectedLogp] += means ? pair.rejected / pair.rejected_tokens : pair.rejected;
  sums[kChosenLogits] += logits[0];
  sums[kRejectedLogits] += logits[1];
  sums[kChosenTokens] += pair.chosen_tokens;
  sums[kRejectedTokens] += pair.rejected_tokens;
  if (!has_odds()) return;
  sums[kLogOdds] += LogOddsOf(pair);
  sums[kLogOddsRatio] -= Softplus(-LogOddsOf(pair));
}

// -log p of the chosen answer, of its prompt too, or of its mean.
void PreferenceObjective::AddNll(const ObjectivePass& pass, const TokenScores& tokens,
                                 std::span<const std::int64_t> before, std::int64_t e,
                                 std::span<double> gradient, std::span<double> sums) const {
  const AnswerTokens chosen = AnswersOf(pass.batch, before, e).front();
  const bool of_answers = options_.nll_over == NllOver::kAnswers;
  const double share = of_answers ? 1 / static_cast<double>(chosen.tokens()) : 1;
  const double slope = options_.nll_weight * share / NllCount(pass.totals);
  const std::int64_t begin = options_.nll_over == NllOver::kText ? chosen.text : chosen.begin;
  for (std::int64_t t = begin; t < chosen.end; ++t) {
    sums[kNll] -= share * tokens.logp[t];
    gradient[t] -= slope;
  }
}

void PreferenceObjective::AddLabel(const ObjectivePass& pass, const TokenScores& tokens,
                                   std::span<const std::int64_t> before, std::int64_t e,
                                   std::span<double> gradient, std::span<double> sums) const {
  const std::vector<AnswerTokens> answers = AnswersOf(pass.batch, before, e);
  if (answers.size() != 1) ThrowRuntime("an answer with a label has {} answers", answers.size());
  const AnswerTokens& answer = answers.front();
  const auto at = tokens.logp.begin();
  const double logp = std::accumulate(at + answer.begin, at + answer.end, 0.0);
  const double ratio = logp - ReferenceOf(pass.batch, answer);
  const bool desirable = pass.batch.desirable[e] != 0;
  const double weight = options_.terms.front().weight;
  sums[kLoss] += weight * LabelLoss(ratio, desirable, pass.totals.kl, options_);
  const double slope = weight * LabelLossGradient(ratio, desirable, pass.totals.kl, options_) /
                       static_cast<double>(pass.totals.samples);
  for (std::int64_t t = answer.begin; t < answer.end; ++t) gradient[t] += slope;
  sums[desirable ? kDesirable : kUndesirable] += 1;
  sums[desirable ? kDesirableReward : kUndesirableReward] += options_.beta * ratio;
  sums[desirable ? kDesirableLogp : kUndesirableLogp] += logp;
  const auto logits = tokens.mean_logit.begin();
  sums[desirable ? kDesirableLogits : kUndesirableLogits] +=
      std::accumulate(logits + answer.begin, logits + answer.end, 0.0);
  sums[desirable ? kDesirableTokens : kUndesirableTokens] += static_cast<double>(answer.tokens());
  const auto entropy = tokens.entropy.begin();
  sums[kLabelEntropy] += std::accumulate(entropy + answer.begin, entropy + answer.end, 0.0);
}

// What the sum of -log p is divided by.
double PreferenceObjective::NllCount(const WindowTotals& totals) const {
  return static_cast<double>(options_.nll_over == NllOver::kAnswers ? totals.samples
                                                                    : totals.chosen);
}

std::vector<double> PreferenceObjective::Values(std::span<const double> sums,
                                                const WindowTotals& totals) const {
  const double n = static_cast<double>(totals.samples);
  if (options_.family() == LossFamily::kLabels) {
    const double chosen = Mean(sums[kDesirableReward], sums[kDesirable]);
    const double rejected = Mean(sums[kUndesirableReward], sums[kUndesirable]);
    std::vector<double> values = {
        sums[kLoss] / n,
        chosen,
        rejected,
        chosen - rejected,
        Mean(sums[kDesirableLogp], sums[kDesirable]),
        Mean(sums[kUndesirableLogp], sums[kUndesirable]),
        Mean(sums[kDesirableLogits], sums[kDesirableTokens]),
        Mean(sums[kUndesirableLogits], sums[kUndesirableTokens]),
        Mean(sums[kLabelEntropy], sums[kDesirableTokens] + sums[kUndesirableTokens])};
    if (options_.needs_kl()) values.push_back(totals.kl);
    return values;
  }
  const bool trains_nll = options_.nll_weight > 0;
  const double nll = trains_nll ? sums[kNll] / NllCount(totals) : 0;
  const double chosen = sums[kChosenReward] / n;
  const double rejected = sums[kRejectedReward] / n;
  std::vector<double> values = {sums[kLoss] / n + options_.nll_weight * nll,
                                chosen,
                                rejected,
                                chosen - rejected,
                                sums[kHits] / n,
                                sums[kChosenLogp] / n,
                                sums[kRejectedLogp] / n,
                                sums[kChosenLogits] / sums[kChosenTokens],
                                sums[kRejectedLogits] / sums[kRejectedTokens],
                                sums[kChosenHits] / sums[kChosenTokens],
                                sums[kEntropy] / (sums[kChosenTokens] + sums[kRejectedTokens])};
  if (trains_nll) values.push_back(nll);
  if (has_odds()) values.insert(values.end(), {sums[kLogOdds] / n, sums[kLogOddsRatio] / n});
  return values;
}

}  // namespace qlora
