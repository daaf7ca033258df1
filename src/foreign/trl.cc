// TRL: the YAML files of `trl sft`, and SFTConfig, LoraConfig and BitsAndBytesConfig spelled as
// YAML or JSON.
#include <array>

#include "foreign/rules.h"

namespace qlora {
namespace {

// Settings that trainers by rewards alone have. With them `beta` is another thing than DPO's.
void MigrateRewards(const YAML::Node& value, MigrationTarget& target) {
  if (IsOff(value)) return target.NotNeeded("switched off");
  RefuseRewardTraining("the configuration",
                       "what its keys say (num_generations, reward_funcs ...)");
}

void MigrateOrdinal(const YAML::Node& value, MigrationTarget& target) {
  target.Carry("ordinal_weight", value);
  if (!IsOff(value)) {
    target.Done("the mean is over all questions, there over those with levels alone");
  }
}

// sft.py reads its arguments from ScriptArguments and ModelConfig.
constexpr KeyRule kTrlRules[] = {
    rule::NotNeeded("of PyTorch", "gradient_checkpointing_use_reentrant"),
    rule::NotNeeded("of distributed PyTorch", "ignore_bias_buffers"),
    rule::NotNeeded("files are always read as they are needed", "streaming"),
    // Of Unsloth's DecisionTrainer and FastDecisionModel, which read TRL's other keys.
    rule::Copy("model_name_or_path", "model_name"),
    rule::Same("brier_weight max_options calibration_size"),
    rule::Custom(MigrateOrdinal, "ordinal_weight"),
    rule::NotNeeded("answers are letters of the model's own vocabulary, without a head",
                    "decision_head head_learning_rate"),
    rule::NotNeeded("each question is answered by itself", "permute_fields"),
    rule::Unsupported("see anchor, texts on which the model is kept near its base", "kl_weight"),
    rule::Custom(MigrateRewards,
                 "num_generations reward_funcs reward_weights reward_model_name_or_path "
                 "reward_model_path scale_rewards num_iterations steps_per_generation "
                 "generation_batch_size num_ppo_epochs rloo_k use_vllm GRPOConfig grpo_config "
                 "RLOOConfig rloo_config PPOConfig ppo_config RewardConfig reward_config "
                 "OnlineDPOConfig online_dpo_config"),
    rule::Unsupported("migrate that file too", "config"),
    rule::Unsupported("set environment variables in the shell", "env"),
    rule::Unsupported("give the files as dataset", "datasets"),
};

constexpr auto kTrlDefaults = std::to_array<ForeignDefault>({
    {"preference_loss", "sigmoid", "DPOConfig", "TRL"},
    {"preference_loss", "kto", "KTOConfig", "TRL"},
    {"preference_loss", "orpo", "ORPOConfig", "TRL"},
    {"preference_loss", "cpo", "CPOConfig", "TRL"},
    // The first default of a key decides: defaults of the classes go before TRL's.
    {"lora_r", "8", "LoraConfig", "PEFT"},
    {"lora_alpha", "8", "LoraConfig", "PEFT"},
    {"lora_dropout", "0", "LoraConfig", "PEFT"},
    {"lora_target_modules", "q_proj,v_proj", "LoraConfig", "PEFT"},
    {"load_in_4bit", "false", "BitsAndBytesConfig", "transformers"},
    {"bnb_4bit_quant_type", "fp4", "BitsAndBytesConfig", "transformers"},
    {"bnb_4bit_use_double_quant", "false", "BitsAndBytesConfig", "transformers"},
    // TRL's defaults where ours differ, for keys that the file does not set.
    {"load_in_4bit", "false"},
    {"lr_scheduler_type", "linear"},
    {"warmup_ratio", "0"},
    {"num_train_epochs", "3"},
    {"per_device_train_batch_size", "8"},
    {"gradient_accumulation_steps", "1"},
    {"max_length", "1024"},
    {"over_long", "truncate"},
    {"prompt_layout", "text"},
    {"save_steps", "500"},
    {"lora_r", "16"},
    {"lora_alpha", "32"},
    {"lora_dropout", "0.05"},
    {"lora_target_modules", "q_proj,v_proj"},
});

constexpr auto kTrlMarks = std::to_array<std::string_view>({"use_peft",
                                                            "dataset_name",
                                                            "dataset_train_split",
                                                            "dataset_test_split",
                                                            "dataset_text_field",
                                                            "lora_target_modules",
                                                            "attn_implementation",
                                                            "task_type",
                                                            "target_modules",
                                                            "use_bnb_nested_quant",
                                                            "completion_only_loss",
                                                            "assistant_only_loss",
                                                            "packing_strategy",
                                                            "bnb_4bit_compute_dtype",
                                                            "max_seq_length",
                                                            "lora_task_type",
                                                            "peft_type",
                                                            "loss_type",
                                                            "precompute_ref_log_probs",
                                                            "max_prompt_length",
                                                            "desirable_weight",
                                                            "decision_head",
                                                            "permute_fields"});

void CompleteTrl(MigrationTarget& target) {
  if (Squeezed(target.ValueOf("load_in_4bit")) == "true") {
    target.SetDefault("bnb_4bit_use_double_quant", "false");
  }
  // `trl dpo` has no other key that says what it trains.
  const bool has_beta = !target.ValueOf("beta").empty();
  if (has_beta && target.ValueOf("preference_loss").empty()) {
    target.SetDefault("preference_loss", "sigmoid");
  }
  CompletePreferences(target);
  if (!target.ValueOf("preference_loss").empty()) {
    target.SetDefault("learning_rate", "1e-6");
    if (target.ValueOf("preference_loss") == "simpo") target.SetDefault("cpo_alpha", "1");
    return;
  }
  target.SetDefault("learning_rate", "2e-5");
  target.SetDefault("assistant_only_loss", "false");
  // Our train_on_inputs is about records of all formats, completion_only_loss about completions.
  if (target.ValueOf("train_on_inputs") != "true" ||
      target.ValueOf("assistant_only_loss") != "true") {
    return;
  }
  target.Part("completion_only_loss with assistant_only_loss", YAML::Node("false, true"));
  target.Unsupported(
      "train_on_inputs trains on every token of conversations as well: leave out one of the two");
}

}  // namespace

const ForeignTrainer& TrlTrainer() {
  static const ForeignTrainer kTrainer = {
      .name = "TRL",
      .from = "trl",
      .rules = kTrlRules,
      .more_rules = TransformersRules(),
      .defaults = kTrlDefaults,
      .marks = kTrlMarks,
      .complete = CompleteTrl,
  };
  return kTrainer;
}

}  // namespace qlora
