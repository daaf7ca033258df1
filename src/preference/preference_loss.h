// What training on preferences minimizes: functions of the log-probabilities of whole answers.
//
//   y+, y-      the chosen and the rejected answer to a prompt x, with |y+| and |y-| tokens
//   logp(y)     log-probability of an answer, the sum over its tokens;  a(y) = logp(y) / |y|
//   r(y)        logp(y) - logp_ref(y), against the model that the run started from
//   z           beta (r(y+) - r(y-)),  s the logistic function
//
// Each loss is a template, so that its derivative can be taken by a complex step, with its gradient
// by hand beside it. Sources of the formulas: docs/preference.md.
#ifndef QLORA_PREFERENCE_PREFERENCE_LOSS_H_
#define QLORA_PREFERENCE_PREFERENCE_LOSS_H_

#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "preference/stable_functions.h"

namespace qlora {

enum class PreferenceLoss : std::uint8_t {
  kSigmoid,
  kRobust,
  kHinge,
  kIpo,
  kSigmoidNorm,
  kApoZero,
  kApoDown,
  kSppoHard,
  kNcaPair,
  kBcoPair,
  kExoPair,
  kDiscopop,
  kOrpo,
  kSimpo,
  kCpo,
  kKto,              // of single answers with a label
  kApoZeroUnpaired,  // likewise, with K = 0
  kSft,              // -log p of chosen answers, beside others
};

// What a loss is measured against and made of.
enum class LossFamily : std::uint8_t {
  kReference,  // pairs, against a reference
  kOwn,        // pairs, without a reference
  kLabels,     // single answers with a label, against a reference
  kSft,
};
LossFamily FamilyOf(PreferenceLoss loss);
// True for a loss of the means over the tokens of answers, which does not grow with their length.
bool TakesMeans(PreferenceLoss loss);

std::string_view NameOf(PreferenceLoss loss);  // "sigmoid_norm"
std::vector<std::string_view> PreferenceLossNames();
// Returns the loss of this name; nothing where there is none.
std::optional<PreferenceLoss> FindPreferenceLoss(std::string_view name);

// The tokens over which -log p of chosen answers is averaged.
enum class NllOver : std::uint8_t {
  kText,     // of prompts and answers of a window, as ORPO has it
  kTokens,   // of the answers of a window
  kAnswers,  // of each answer, then over the answers
};

struct PreferenceTerm {
  PreferenceLoss loss = PreferenceLoss::kSigmoid;
  double weight = 1;
};

struct PreferenceLossOptions {
  std::vector<PreferenceTerm> terms = {{}};  // of one family, none of them kSft
  double beta = 0.1;
  double label_smoothing = 0;  // e
  double simpo_gamma = 0;
  double discopop_tau = 0.05;
  double nll_weight = 0;  // of -log p of the chosen answers
  NllOver nll_over = NllOver::kTokens;
  double ld_alpha = 1;         // weight of the tokens beyond the length of the shorter answer
  bool use_weighting = false;  // pairs weigh as much as the model is sure of both answers (WPO)
  double desirable_weight = 1;
  double undesirable_weight = 1;
  bool reference_free =
      false;  // log-probabilities of a reference count as 0, as if it knew nothing

  LossFamily family() const { return FamilyOf(terms.front().loss); }
  bool needs_reference() const { return family() != LossFamily::kOwn && !reference_free; }
  bool needs_kl() const { return terms.front().loss == PreferenceLoss::kKto; }
};

template <typename T>
struct PairLogprobs {
  T chosen = 0;
  T rejected = 0;
  double ref_chosen = 0;
  double ref_rejected = 0;
  double chosen_tokens = 1;
  double rejected_tokens = 1;
};

// The gradient with respect to chosen and rejected.
struct PairGradient {
  double chosen = 0;
  double rejected = 0;
};

namespace preference_internal {

// o = log odds of the mean probability of y+ less that of y-, of answers that may be certain.
inline constexpr double kMostCertain = -1e-7;
template <typename T>
T LogOdds(const T& mean) {
  const T a = std::real(mean) > kMostCertain ? T(kMostCertain) : mean;
  return a - LogOneMinusExp(a);
}

}  // namespace preference_internal

// The loss of one pair.
template <typename T>
T PairLoss(PreferenceLoss loss, const PairLogprobs<T>& pair, const PreferenceLossOptions& o) {
  const T r_chosen = pair.chosen - pair.ref_chosen;
  const T r_rejected = pair.rejected - pair.ref_rejected;
  const T a_chosen = pair.chosen / pair.chosen_tokens;
  const T a_rejected = pair.rejected / pair.rejected_tokens;
  const T norm = r_chosen / pair.chosen_tokens - r_rejected / pair.rejected_tokens;
  const double e = o.label_smoothing;
  const double margin = 1 / (2 * o.beta);
  const T b_chosen = o.beta * r_chosen;
  const T b_rejected = o.beta * r_rejected;
  const T z = b_chosen - b_rejected;
  const auto square = [](const T& x) { return x * x; };
  switch (loss) {
    case PreferenceLoss::kSigmoid:
      return (1 - e) * Softplus(-z) + e * Softplus(z);
    case PreferenceLoss::kRobust:
      return ((1 - e) * Softplus(-z) - e * Softplus(z)) / (1 - 2 * e);
    case PreferenceLoss::kHinge:
      return std::real(z) < 1 ? 1.0 - z : T(0);
    case PreferenceLoss::kIpo:
      return square(norm - margin);
    case PreferenceLoss::kSigmoidNorm:
      return Softplus(-o.beta * norm);
    case PreferenceLoss::kApoZero:
      return Sigmoid(-b_chosen) + Sigmoid(b_rejected);
    case PreferenceLoss::kApoDown:
      return Sigmoid(b_chosen) + Sigmoid(-z);
    case PreferenceLoss::kSppoHard:
      return square(r_chosen - margin) + square(r_rejected + margin);
    case PreferenceLoss::kNcaPair:
      return Softplus(-b_chosen) + 0.5 * Softplus(b_chosen) + 0.5 * Softplus(b_rejected);
    case PreferenceLoss::kBcoPair:
      return Softplus(-b_chosen) + Softplus(b_rejected);
    case PreferenceLoss::kExoPair:
      return Sigmoid(z) * (-Softplus(-z) - std::log1p(-e)) +
             Sigmoid(-z) * (-Softplus(z) - std::log(e));
    case PreferenceLoss::kDiscopop:
      return Sigmoid(-z / o.discopop_tau) * Softplus(-z) + ExpOfSigmoid(z, 1 / o.discopop_tau);
    case PreferenceLoss::kOrpo:
      return o.beta * Softplus(preference_internal::LogOdds(a_rejected) -
                               preference_internal::LogOdds(a_chosen));
    case PreferenceLoss::kSimpo:
      return Softplus(o.simpo_gamma - o.beta * (a_chosen - a_rejected));
    case PreferenceLoss::kCpo:
      return Softplus(-o.beta * (pair.chosen - pair.rejected));
    case PreferenceLoss::kKto:
    case PreferenceLoss::kApoZeroUnpaired:
    case PreferenceLoss::kSft:
      break;
  }
  return T(0);
}
PairGradient PairLossGradient(PreferenceLoss loss, const PairLogprobs<double>& pair,
                              const PreferenceLossOptions& options);

// The log odds of the chosen answer less those of the rejected one, of which kOrpo takes the loss.
double LogOddsOf(const PairLogprobs<double>& pair);

// The loss of one answer with a label: w (1 - s(q)), q = beta (r - k) and w = desirable_weight for
// a desirable answer, else q = -beta (r - k) and w = undesirable_weight. k: the KL to the reference
// as mismatched answers estimate it, a constant.
template <typename T>
T LabelLoss(const T& r, bool desirable, double k, const PreferenceLossOptions& o) {
  const T q = (desirable ? o.beta : -o.beta) * (r - k);
  return (desirable ? o.desirable_weight : o.undesirable_weight) * Sigmoid(-q);
}
double LabelLossGradient(double r, bool desirable, double k, const PreferenceLossOptions& options);

// What a pair's loss has as its reward: beta r(y), and without a reference beta a(y) or
// beta logp(y).
struct PairRewards {
  double chosen = 0;
  double rejected = 0;
};
PairRewards RewardsOf(const PairLogprobs<double>& pair, const PreferenceLossOptions& options);

}  // namespace qlora

#endif  // QLORA_PREFERENCE_PREFERENCE_LOSS_H_
