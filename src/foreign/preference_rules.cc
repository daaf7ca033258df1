// Keys of training on preferences, which several trainers share.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/text.h"
#include "foreign/rules.h"
#include "preference/preference_loss.h"

namespace qlora {
namespace {

constexpr std::string_view kNotOurs =
    "this loss is not computed here; preference_loss lists those that are";

std::vector<std::string> NamesIn(const YAML::Node& value) {
  std::vector<std::string> names;
  if (!value.IsSequence()) return {LowerText(value)};
  for (const YAML::Node& item : value) names.push_back(LowerText(item));
  return names;
}

bool IsOurLoss(const std::string& name) {
  return std::ranges::count(PreferenceLossNames(), std::string_view(name)) > 0;
}

bool IsPairMethod(std::string_view method) { return HasWord("dpo ipo orpo simpo cpo kto", method); }

// Losses of TRL's trainers by rewards, whose loss_type this is too.
constexpr std::string_view kRewardLosses = "grpo dr_grpo bnpo dapo cispo sapo luspo vespo";

}  // namespace

void MigrateLossType(const YAML::Node& value, MigrationTarget& target) {
  const std::vector<std::string> names = NamesIn(value);
  if (names.size() == 1 && HasWord("nll chunked_nll", names[0])) {
    return target.NotNeeded("the loss is plain cross-entropy");
  }
  for (const std::string& name : names) {
    if (HasWord(kRewardLosses, name)) RefuseRewardTraining("loss_type", name);
    if (!IsOurLoss(name)) return target.Unsupported(kNotOurs);
  }
  target.Carry("preference_loss", value);
}

void MigratePreferenceMethod(const YAML::Node& value, MigrationTarget& target) {
  const std::string method = LowerText(value);
  if (IsOff(value)) return target.NotNeeded("switched off");
  if (!IsPairMethod(method)) {
    return target.Unsupported(
        "training is supervised fine-tuning or on preferences; see preference_loss");
  }
  const bool named = !target.Theirs("dpo_loss_type").empty() || !target.Theirs("pref_loss").empty();
  if (method == "dpo" && named) return target.NotNeeded("preference_loss says so");
  target.Carry("preference_loss", YAML::Node(method == "dpo" ? "sigmoid" : method));
}

void MigrateReferenceFree(const YAML::Node& value, MigrationTarget& target) {
  if (IsOff(value)) return target.NotNeeded("the default");
  target.Carry("reference", YAML::Node("none"));
}

void CompletePreferences(MigrationTarget& target) {
  const std::string losses = target.ValueOf("preference_loss");
  if (losses.empty()) return;
  target.SetDefault("beta", "0.1");
  if (losses == "simpo") target.SetDefault("simpo_gamma", "0.5");
  const std::string dropout = target.ValueOf("lora_dropout");
  if (!dropout.empty() && dropout != "0" && dropout != "0.0") {
    target.Part("lora_dropout", YAML::Node(dropout));
    target.LeaveAtDefault("lora_dropout",
                          "preferences are compared without dropout, as there (disable_dropout)");
  }
}

std::span<const KeyRule> PreferenceRules() {
  static constexpr KeyRule kRules[] = {
      rule::Custom(MigrateLossType, "loss_type pref_loss dpo_loss_type preference_loss"),
      rule::Copy("loss_weights", "dpo_loss_weights"),
      rule::Same("loss_weights beta simpo_gamma cpo_alpha ld_alpha use_weighting discopop_tau "
                 "desirable_weight undesirable_weight rpo_alpha reference nll_over"),
      rule::Copy("beta", "pref_beta rl_beta orpo_alpha dpo_beta kto_beta"),
      rule::Copy("label_smoothing_factor", "label_smoothing dpo_label_smoothing"),
      rule::Copy("use_weighting", "dpo_use_weighting"),
      rule::Copy("desirable_weight", "kto_desirable_weight kto_chosen_weight"),
      rule::Copy("undesirable_weight", "kto_undesirable_weight kto_rejected_weight"),
      rule::NotNeeded("log-probabilities of the reference are always computed once, before step 1",
                      "precompute_ref_log_probs precompute_ref_batch_size"),
      rule::Expect("true", "preferences are compared without dropout", "disable_dropout"),
      rule::NotNeeded("the reference is the model at the start; see reference",
                      "rl_adapter_ref_model ref_adapter_name model_adapter_name "
                      "force_use_ref_model"),
      rule::NotNeeded("prompts are never cut; see over_long",
                      "max_prompt_length max_completion_length"),
      rule::NotNeeded("labels and logits have one form here",
                      "label_pad_token_id use_logits_to_keep"),
      rule::Unsupported("see sample_prompts", "generate_during_eval"),
      rule::Unsupported("the reference is the model at the start, or the adapter of reference",
                        "ref_model ref_model_adapters sync_ref_model"),
      rule::Custom(MigrateReferenceFree, "reference_free"),
      rule::Unsupported("the loss is a function of differences of log-probabilities",
                        "f_divergence_type f_divergence_params f_alpha_divergence_coef"),
  };
  return kRules;
}

}  // namespace qlora
