#include "preference/preference_loss.h"

#include <algorithm>
#include <iterator>

namespace qlora {
namespace {

using Loss = PreferenceLoss;

struct LossName {
  Loss loss;
  std::string_view name;
  LossFamily family;
  bool takes_means = false;
};
constexpr LossName kLosses[] = {
    {Loss::kSigmoid, "sigmoid", LossFamily::kReference},
    {Loss::kRobust, "robust", LossFamily::kReference},
    {Loss::kHinge, "hinge", LossFamily::kReference},
    {Loss::kIpo, "ipo", LossFamily::kReference, true},
    {Loss::kSigmoidNorm, "sigmoid_norm", LossFamily::kReference, true},
    {Loss::kApoZero, "apo_zero", LossFamily::kReference},
    {Loss::kApoDown, "apo_down", LossFamily::kReference},
    {Loss::kSppoHard, "sppo_hard", LossFamily::kReference},
    {Loss::kNcaPair, "nca_pair", LossFamily::kReference},
    {Loss::kBcoPair, "bco_pair", LossFamily::kReference},
    {Loss::kExoPair, "exo_pair", LossFamily::kReference},
    {Loss::kDiscopop, "discopop", LossFamily::kReference},
    {Loss::kOrpo, "orpo", LossFamily::kOwn, true},
    {Loss::kSimpo, "simpo", LossFamily::kOwn, true},
    {Loss::kCpo, "cpo", LossFamily::kOwn},
    {Loss::kKto, "kto", LossFamily::kLabels},
    {Loss::kApoZeroUnpaired, "apo_zero_unpaired", LossFamily::kLabels},
    {Loss::kSft, "sft", LossFamily::kSft},
};

const LossName& RowOf(Loss loss) { return *std::ranges::find(kLosses, loss, &LossName::loss); }

double Slope(double x) { return Sigmoid(x) * Sigmoid(-x); }  // s'(x)

// The derivative of the losses of z alone.
double OfMargin(Loss loss, double z, const PreferenceLossOptions& o) {
  const double e = o.label_smoothing;
  switch (loss) {
    case Loss::kSigmoid:
      return -(1 - e) * Sigmoid(-z) + e * Sigmoid(z);
    case Loss::kRobust:
      return -((1 - e) * Sigmoid(-z) + e * Sigmoid(z)) / (1 - 2 * e);
    case Loss::kHinge:
      return z < 1 ? -1 : 0;
    case Loss::kExoPair:
      return Slope(z) * (z - std::log1p(-e) + std::log(e));
    default: {  // discopop: m' = m (1 - m) / tau, m = s(z / tau)
      const double c = 1 / o.discopop_tau;
      const double rises = c * Slope(c * z);
      return -rises * Softplus(-z) - Sigmoid(-c * z) * Sigmoid(-z) +
             ExpOfSigmoid(z, c) * (c * Sigmoid(-c * z) - 1);
    }
  }
}

// The derivative of the log odds with respect to the mean.
double OfLogOdds(double mean) {
  return mean > preference_internal::kMostCertain ? 0 : -1 / Expm1(mean);
}

// Of the losses without a reference.
PairGradient OfOwn(Loss loss, const PairLogprobs<double>& pair, const PreferenceLossOptions& o) {
  const double chosen = pair.chosen / pair.chosen_tokens;
  const double rejected = pair.rejected / pair.rejected_tokens;
  if (loss == Loss::kCpo) {
    const double u = o.beta * Sigmoid(-o.beta * (pair.chosen - pair.rejected));
    return {-u, u};
  }
  if (loss == Loss::kSimpo) {
    const double u = o.beta * Sigmoid(o.simpo_gamma - o.beta * (chosen - rejected));
    return {-u / pair.chosen_tokens, u / pair.rejected_tokens};
  }
  const double u = o.beta * Sigmoid(-LogOddsOf(pair));
  return {-u * OfLogOdds(chosen) / pair.chosen_tokens,
          u * OfLogOdds(rejected) / pair.rejected_tokens};
}

}  // namespace

double LogOddsOf(const PairLogprobs<double>& pair) {
  return preference_internal::LogOdds(pair.chosen / pair.chosen_tokens) -
         preference_internal::LogOdds(pair.rejected / pair.rejected_tokens);
}

LossFamily FamilyOf(PreferenceLoss loss) { return RowOf(loss).family; }

bool TakesMeans(PreferenceLoss loss) { return RowOf(loss).takes_means; }

std::string_view NameOf(PreferenceLoss loss) { return RowOf(loss).name; }

std::vector<std::string_view> PreferenceLossNames() {
  std::vector<std::string_view> names;
  for (const LossName& row : kLosses) names.push_back(row.name);
  return names;
}

std::optional<PreferenceLoss> FindPreferenceLoss(std::string_view name) {
  const LossName* const row = std::ranges::find(kLosses, name, &LossName::name);
  return row == std::end(kLosses) ? std::nullopt : std::optional(row->loss);
}

PairGradient PairLossGradient(PreferenceLoss loss, const PairLogprobs<double>& pair,
                              const PreferenceLossOptions& o) {
  if (FamilyOf(loss) == LossFamily::kOwn) return OfOwn(loss, pair, o);
  const double r_chosen = pair.chosen - pair.ref_chosen;
  const double r_rejected = pair.rejected - pair.ref_rejected;
  const double norm = r_chosen / pair.chosen_tokens - r_rejected / pair.rejected_tokens;
  const double beta = o.beta;
  const double margin = 1 / (2 * beta);
  const double c = beta * r_chosen;
  const double r = beta * r_rejected;
  const auto of_norm = [&](double slope) {
    return PairGradient{slope / pair.chosen_tokens, -slope / pair.rejected_tokens};
  };
  switch (loss) {
    case Loss::kIpo:
      return of_norm(2 * (norm - margin));
    case Loss::kSigmoidNorm:
      return of_norm(-beta * Sigmoid(-beta * norm));
    case Loss::kApoZero:
      return {-beta * Slope(c), beta * Slope(r)};
    case Loss::kApoDown:
      return {beta * (Slope(c) - Slope(c - r)), beta * Slope(c - r)};
    case Loss::kSppoHard:
      return {2 * (r_chosen - margin), 2 * (r_rejected + margin)};
    case Loss::kNcaPair:
      return {beta * (0.5 * Sigmoid(c) - Sigmoid(-c)), 0.5 * beta * Sigmoid(r)};
    case Loss::kBcoPair:
      return {-beta * Sigmoid(-c), beta * Sigmoid(r)};
    default: {
      const double slope = beta * OfMargin(loss, c - r, o);
      return {slope, -slope};
    }
  }
}

double LabelLossGradient(double r, bool desirable, double k, const PreferenceLossOptions& o) {
  const double beta = desirable ? o.beta : -o.beta;
  return -(desirable ? o.desirable_weight : o.undesirable_weight) * beta * Slope(beta * (r - k));
}

PairRewards RewardsOf(const PairLogprobs<double>& pair, const PreferenceLossOptions& options) {
  const auto of = [&](double logp, double reference, double tokens) {
    if (options.family() != LossFamily::kOwn) return options.beta * (logp - reference);
    return options.beta * (TakesMeans(options.terms.front().loss) ? logp / tokens : logp);
  };
  return {of(pair.chosen, pair.ref_chosen, pair.chosen_tokens),
          of(pair.rejected, pair.ref_rejected, pair.rejected_tokens)};
}

}  // namespace qlora
