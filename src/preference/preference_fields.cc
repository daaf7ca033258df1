#include "preference/preference_fields.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/spelling.h"
#include "base/text.h"

namespace qlora {

// Names and defaults are those of TRL, aliases come from Axolotl and LLaMA-Factory.
void PreferenceFields::Declare(OptionTable& table) {
  DeclareLoss(table);
  table.AddPath(
      "reference", &reference,
      "the model that preferences hold on to: start (as it is before the first step), base "
      "(without the adapter), the folder of an adapter of the same base, or none");
}

void PreferenceFields::DeclareLoss(OptionTable& table) {
  table.Section("Preferences");
  table.Add("preference_loss", &preference_loss,
            "loss of preferences: sigmoid (DPO), robust, hinge, ipo, sigmoid_norm, "
            "apo_zero, apo_down, sppo_hard, nca_pair, bco_pair, exo_pair, discopop, orpo, simpo, "
            "cpo, and of answers with labels kto, apo_zero_unpaired; several are added, as is sft, "
            "-log p of the chosen answers",
            {"pref_loss", "dpo_loss_type"});
  table.Add("loss_weights", &loss_weights, "weights of several losses of preference_loss",
            {"dpo_loss_weights"});
  table.Add(
      "beta", &beta,
      "how strongly preferences hold the model to the reference; 0 (not set): 0.1, of simpo 2, "
      "of sigmoid_norm 5",
      {"pref_beta", "rl_beta", "orpo_alpha"});
  table.Add("simpo_gamma", &simpo_gamma, "preference_loss simpo: margin between the answers");
  table.Add("cpo_alpha", &cpo_alpha,
            "preference_loss cpo, simpo: weight of -log p of the chosen answers; -1: of cpo 1, of "
            "simpo 0");
  table.Add("rpo_alpha", &rpo_alpha,
            "weight of -log p of the chosen answers beside losses with a reference (RPO)");
  table.Choice(
      "nll_over", &nll_over, {"auto", "text", "tokens", "answers"},
      "mean of -log p of the chosen answers over the tokens of prompts and answers (text), "
      "those of answers (tokens), or of each answer (answers); auto: of orpo text, else "
      "tokens");
  table.Add("discopop_tau", &discopop_tau, "preference_loss discopop: temperature");
  table.Add("ld_alpha", &ld_alpha,
            "weight of the tokens of an answer beyond the length of the shorter answer of its pair "
            "(LD-DPO)");
  table.Add("use_weighting", &use_weighting,
            "weigh pairs by the probability of their answers under the model (WPO)",
            {"dpo_use_weighting"});
  table.Add("desirable_weight", &desirable_weight,
            "preference_loss kto: weight of the desirable answers",
            {"kto_desirable_weight", "kto_chosen_weight"});
  table.Add("undesirable_weight", &undesirable_weight,
            "preference_loss kto: weight of the undesirable answers",
            {"kto_undesirable_weight", "kto_rejected_weight"});
}

// The table writes into this object.
void PreferenceFields::Complete(OptionTable& table, double label_smoothing) const {
  if (preference_loss.empty()) return;
  if (!table.Find("beta")->set) {
    const double usual = PreferenceLossOf(*this, label_smoothing).beta;
    table.Set("beta", fmt::format("{}", usual), "preference_loss");
  } else if (beta == 0) {
    ThrowInvalidInput("beta: expected a positive number, found 0; with 0 nothing is trained");
  }
}

namespace {

using Loss = PreferenceLoss;

Loss ParseLoss(const std::string& name) {
  if (const auto loss = FindPreferenceLoss(name)) return *loss;
  const std::vector<std::string_view> names = PreferenceLossNames();
  std::string list;
  for (const std::string_view known : names)
    list += (list.empty() ? "" : ", ") + std::string(known);
  const std::vector<std::string> all(names.begin(), names.end());
  const std::string near = name == "dpo" ? "sigmoid" : Nearest(name, all);
  ThrowInvalidInput("preference_loss: expected one of {}, found '{}'{}", list, name,
                    near.empty() ? "" : fmt::format("; did you mean {}?", near));
}

double ParseWeight(const std::string& text) {
  const double weight = ParseNumber<double>(text).value_or(0);
  if (weight > 0 && weight < 1e6) return weight;
  ThrowInvalidInput("loss_weights: expected positive numbers, found '{}'", text);
}

// The losses with their weights; sft among them.
std::vector<PreferenceTerm> TermsOf(const PreferenceFields& fields) {
  std::vector<PreferenceTerm> terms;
  for (const std::string& name : fields.preference_loss) terms.push_back({ParseLoss(name), 1});
  if (!fields.loss_weights.empty() && fields.loss_weights.size() != terms.size()) {
    ThrowInvalidInput("loss_weights: expected {} numbers, one for each preference_loss, found {}",
                      terms.size(), fields.loss_weights.size());
  }
  for (std::size_t i = 0; i < fields.loss_weights.size(); ++i) {
    terms[i].weight = ParseWeight(fields.loss_weights[i]);
  }
  for (std::size_t i = 0; i < terms.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (terms[i].loss != terms[j].loss) continue;
      ThrowInvalidInput("preference_loss names {} twice; keep one", NameOf(terms[i].loss));
    }
  }
  return terms;
}

// Losses are measured against one thing, and rewards are defined by it.
void CheckMixture(const std::vector<PreferenceTerm>& terms) {
  if (terms.empty()) {
    ThrowInvalidInput(
        "preference_loss sft alone is ordinary training; leave preference_loss out and train on "
        "the chosen answers");
  }
  if (terms.size() == 1) return;
  for (const PreferenceTerm& term : terms) {
    if (FamilyOf(term.loss) == LossFamily::kReference) continue;
    ThrowInvalidInput("preference_loss {} does not go with others than sft; keep one of them",
                      NameOf(term.loss));
  }
}

bool Has(const PreferenceLossOptions& loss, Loss one) {
  return std::ranges::any_of(loss.terms, [&](const PreferenceTerm& t) { return t.loss == one; });
}

double DefaultBeta(const PreferenceLossOptions& loss) {
  return Has(loss, Loss::kSimpo) ? 2 : Has(loss, Loss::kSigmoidNorm) ? 5 : 0.1;
}

void SetNll(const PreferenceFields& fields, PreferenceLossOptions& loss) {
  const bool orpo = Has(loss, Loss::kOrpo);
  loss.nll_weight += fields.rpo_alpha + (orpo ? 1 : 0);
  if (Has(loss, Loss::kCpo)) loss.nll_weight += fields.cpo_alpha < 0 ? 1 : fields.cpo_alpha;
  if (Has(loss, Loss::kSimpo)) loss.nll_weight += std::max(0.0, fields.cpo_alpha);
  loss.nll_over = fields.nll_over == "answers"        ? NllOver::kAnswers
                  : fields.nll_over == "text"         ? NllOver::kText
                  : fields.nll_over == "auto" && orpo ? NllOver::kText
                                                      : NllOver::kTokens;
}

void CheckValues(const PreferenceFields& f, const PreferenceLossOptions& loss) {
  const auto check = [](bool good, const char* name, const char* expected, double found) {
    if (!good) ThrowInvalidInput("{}: expected {}, found {}", name, expected, found);
  };
  check(f.beta >= 0 && f.beta < 1e6, "beta", "a positive number", f.beta);
  check(f.simpo_gamma >= 0, "simpo_gamma", "0 or more", f.simpo_gamma);
  check(f.cpo_alpha >= 0 || f.cpo_alpha == -1, "cpo_alpha", "0 or more, or -1", f.cpo_alpha);
  check(f.rpo_alpha >= 0, "rpo_alpha", "0 or more", f.rpo_alpha);
  check(f.discopop_tau > 0, "discopop_tau", "a positive number", f.discopop_tau);
  check(f.ld_alpha >= 0 && f.ld_alpha <= 1, "ld_alpha", "a number in [0, 1]", f.ld_alpha);
  check(f.desirable_weight > 0, "desirable_weight", "a positive number", f.desirable_weight);
  check(f.undesirable_weight > 0, "undesirable_weight", "a positive number", f.undesirable_weight);
  check(loss.label_smoothing >= 0 && loss.label_smoothing < 0.5, "label_smoothing_factor",
        "of preferences a number in [0, 0.5)", loss.label_smoothing);
}

}  // namespace

PreferenceLossOptions PreferenceLossOf(const PreferenceFields& fields, double label_smoothing) {
  PreferenceLossOptions loss;
  loss.terms.clear();
  for (const PreferenceTerm& term : TermsOf(fields)) {
    if (term.loss == Loss::kSft) {
      loss.nll_weight += term.weight;
    } else {
      loss.terms.push_back(term);
    }
  }
  CheckMixture(loss.terms);
  loss.label_smoothing = label_smoothing;
  CheckValues(fields, loss);
  // The loss has log e as a factor.
  if (Has(loss, Loss::kExoPair) && loss.label_smoothing == 0) loss.label_smoothing = 1e-3;
  loss.beta = fields.beta > 0 ? fields.beta : DefaultBeta(loss);
  loss.simpo_gamma = fields.simpo_gamma;
  loss.discopop_tau = fields.discopop_tau;
  loss.ld_alpha = fields.ld_alpha;
  loss.use_weighting = fields.use_weighting;
  loss.desirable_weight = fields.desirable_weight;
  loss.undesirable_weight = fields.undesirable_weight;
  loss.reference_free = fields.reference == "none";
  if (loss.reference_free && loss.family() == LossFamily::kLabels) {
    ThrowInvalidInput(
        "reference: preference_loss {} is measured against one; expected start, base, or the "
        "folder "
        "of an adapter, found none",
        NameOf(loss.terms.front().loss));
  }
  SetNll(fields, loss);
  if (loss.family() == LossFamily::kLabels && loss.nll_weight > 0) {
    ThrowInvalidInput("preference_loss {} trains on labels, beside which sft has no place",
                      NameOf(loss.terms.front().loss));
  }
  if (loss.use_weighting && loss.nll_weight > 0) {
    ThrowInvalidInput(
        "use_weighting weighs pairs, which sft and rpo_alpha do not compare; leave "
        "one of them out");
  }
  return loss;
}

PreferenceReading ReadingFor(const PreferenceLossOptions& loss) {
  const bool labels = loss.family() == LossFamily::kLabels;
  return {.form = labels ? PreferenceForm::kLabels : PreferenceForm::kPairs,
          .trains_text = loss.nll_weight > 0 && loss.nll_over == NllOver::kText};
}

// What is trained of an answer is all of it.
void CheckPreferenceReading(const ReadingFields& reading) {
  const auto refuse = [](bool given, const char* option, const char* why) {
    if (given) ThrowInvalidInput("{}: preferences compare {}; leave it out", option, why);
  };
  refuse(reading.train_on_inputs, "train_on_inputs", "answers alone");
  refuse(!reading.assistant_only_loss, "assistant_only_loss false", "answers alone");
  refuse(reading.train_turns == "each", "train_turns each", "the answers of a record as a whole");
}

std::vector<IdleOption> IdlePreferenceFields(const PreferenceFields& f, double label_smoothing) {
  const PreferenceFields neutral;
  const bool on = !f.preference_loss.empty();
  const PreferenceLossOptions loss =
      on ? PreferenceLossOf(f, label_smoothing) : PreferenceLossOptions{};
  const bool pairs = on && loss.family() != LossFamily::kLabels;
  const bool refers = on && loss.family() != LossFamily::kOwn;
  const auto has = [&](Loss one) { return on && Has(loss, one); };
  struct Rule {
    const char* option;
    bool given;
    bool used;
    const char* reason;
  };
  const char* loss_of = "it is an option of other losses than this preference_loss; leave it out";
  const auto rules = std::to_array<Rule>({
      {"loss_weights", !f.loss_weights.empty(), on && f.preference_loss.size() > 1, loss_of},
      {"beta", f.beta != neutral.beta, on, loss_of},
      {"simpo_gamma", f.simpo_gamma != neutral.simpo_gamma, has(Loss::kSimpo), loss_of},
      {"cpo_alpha", f.cpo_alpha != neutral.cpo_alpha, has(Loss::kSimpo) || has(Loss::kCpo),
       loss_of},
      {"rpo_alpha", f.rpo_alpha != neutral.rpo_alpha, refers && pairs, loss_of},
      {"nll_over", f.nll_over != neutral.nll_over, on && loss.nll_weight > 0,
       "no -log p of chosen answers is trained; leave it out"},
      {"discopop_tau", f.discopop_tau != neutral.discopop_tau, has(Loss::kDiscopop), loss_of},
      {"ld_alpha", f.ld_alpha != neutral.ld_alpha, refers && pairs, loss_of},
      {"use_weighting", f.use_weighting, refers && pairs, loss_of},
      {"desirable_weight", f.desirable_weight != neutral.desirable_weight, on && !pairs, loss_of},
      {"undesirable_weight", f.undesirable_weight != neutral.undesirable_weight, on && !pairs,
       loss_of},
      {"reference", f.reference != neutral.reference, refers, loss_of},
      {"label_smoothing_factor", on && label_smoothing != 0,
       has(Loss::kSigmoid) || has(Loss::kRobust) || has(Loss::kExoPair), loss_of},
  });
  std::vector<IdleOption> idle;
  for (const Rule& rule : rules) {
    if (!rule.given || rule.used) continue;
    idle.push_back({rule.option, on ? rule.reason : "there is no preference_loss; leave it out"});
  }
  return idle;
}

}  // namespace qlora
