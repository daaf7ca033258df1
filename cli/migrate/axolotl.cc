// Axolotl: the YAML files of `axolotl train`.
#include <algorithm>
#include <array>

#include "migrate/rules.h"

namespace qlora {
namespace {

constexpr std::string_view kOwnFiles = "the files of the checkpoint say this";
constexpr std::string_view kAttention = "attention never stores its matrix";
constexpr std::string_view kFused = "the kernels are fused as they are";
constexpr std::string_view kLora = "adapters are LoRA";

void MigrateAdapter(const YAML::Node& value, MigrationTarget& target) {
  const std::string text = TextOf(value);
  if (text == "qlora") {
    target.Carry("load_in_4bit", YAML::Node("true"));
  } else if (text == "lora") {
    target.NotNeeded("the adapter is LoRA; load_in_4bit says how the base is held");
  } else {
    target.Unsupported("adapters are LoRA; other training is not done");
  }
}

// The names that a data set of chat_template gives to messages, role and content: those of
// OpenAI's form, or those of ShareGPT.
struct MessageNames {
  std::string messages = "messages";
  std::string role = "role";
  std::string content = "content";

  bool operator==(const MessageNames&) const = default;
};
const MessageNames kShareGptNames = {"conversations", "from", "value"};

MessageNames NamesOf(const YAML::Node& item) {
  MessageNames names;
  const auto take = [](const YAML::Node& value, std::string& name) {
    if (value && value.IsScalar()) name = value.Scalar();
  };
  take(item["field_messages"], names.messages);
  take(item["message_field_role"], names.role);
  take(item["message_field_content"], names.content);
  if (const YAML::Node mappings = item["message_property_mappings"]; mappings && mappings.IsMap()) {
    take(mappings["role"], names.role);
    take(mappings["content"], names.content);
  }
  return names;
}

bool IsMessageName(const std::string& key) {
  return key == "field_messages" || key == "message_field_role" || key == "message_field_content" ||
         key == "message_property_mappings";
}

void MigrateMessageName(const YAML::Node& item, MigrationTarget& target) {
  const MessageNames names = NamesOf(item);
  if (names == MessageNames() || names == kShareGptNames) {
    target.NotNeeded("dataset_format says it");
  } else {
    target.Unsupported("rename the fields to messages, role and content");
  }
}

// chat_template, alpaca, completion, alpaca_chat.load_qa ...
void MigrateType(const YAML::Node& item, MigrationTarget& target) {
  const YAML::Node type = item["type"];
  const std::string name = TextOf(type);
  if (name == "chat_template") {
    const bool sharegpt = NamesOf(item) == kShareGptNames;
    target.Carry("dataset_format", YAML::Node(sharegpt ? "sharegpt" : "messages"));
  } else if (name == "alpaca") {
    target.Carry("dataset_format", YAML::Node("alpaca"));
    target.Carry("prompt_layout", YAML::Node("text"));
  } else if (name == "completion" || name == "pretrain") {
    target.Carry("dataset_format", YAML::Node("text"));
  } else if (name == "sharegpt") {
    target.Carry("dataset_format", YAML::Node("sharegpt"));
    target.Unsupported(
        "its layout is another one in each version of Axolotl; here the chat template decides: "
        "name "
        "one with chat_template");
  } else if (type.IsMap()) {
    target.Unsupported("give its formats as prompt_template and completion_template");
  } else {
    target.Unsupported("the format is detected instead; check it with `qlora inspect`");
  }
}

void MigrateChatTemplate(const YAML::Node& value, MigrationTarget& target) {
  if (TextOf(value) == "tokenizer_default" || TextOf(value).empty()) {
    target.NotNeeded("the checkpoint's own chat template is used");
  } else if (TextOf(value) == "chatml" || TextOf(value) == "llama3") {
    target.Carry("chat_template", value);
  } else {
    target.Unsupported(
        "the checkpoint's own chat template is used; for another, give a Jinja file as "
        "chat_template");
  }
}

void MigrateDatasets(const YAML::Node& value, MigrationTarget& target, const char* list,
                     const char* our_key) {
  if (!value.IsSequence() || value.size() == 0)
    return target.Unsupported("expected a list of maps");
  for (std::size_t i = 0; i < value.size(); ++i) {
    const YAML::Node& item = value[i];
    const std::string name = std::string(list) + "[" + std::to_string(i) + "]";
    if (!item.IsMap() || !item["path"] || !item["path"].IsScalar()) {
      target.Part(name, item);
      target.Unsupported("an entry without path");
      continue;
    }
    for (const auto& entry : item) {
      const std::string part = TextOf(entry.first);
      target.Part(name + "." + part, entry.second);
      if (part == "path") {
        target.AddDataset(our_key, entry.second.Scalar());
      } else if (part == "type") {
        MigrateType(item, target);
      } else if (part == "chat_template") {
        MigrateChatTemplate(entry.second, target);
      } else if (IsMessageName(part)) {
        MigrateMessageName(item, target);
      } else if (part == "ds_type" || (part == "split" && TextOf(entry.second) == "train")) {
        target.NotNeeded("a file is read as what it is");
      } else {
        target.Unsupported("data are files in one of the formats that `qlora help train` lists");
      }
    }
  }
}

void MigrateTraining(const YAML::Node& value, MigrationTarget& target) {
  MigrateDatasets(value, target, "datasets", "dataset");
}
void MigrateTest(const YAML::Node& value, MigrationTarget& target) {
  MigrateDatasets(value, target, "test_datasets", "eval_dataset");
}

void MigrateTargetLinear(const YAML::Node& value, MigrationTarget& target) {
  if (TextOf(value) == "true") {
    target.Carry("lora_target_modules", YAML::Node("all-linear"));
  } else {
    target.NotNeeded("lora_target_modules names the linears");
  }
}

void MigrateAutoResume(const YAML::Node& value, MigrationTarget& target) {
  if (TextOf(value) == "true") {
    target.Carry("resume_from_checkpoint", YAML::Node("auto"));
  } else {
    target.NotNeeded("switched off");
  }
}

constexpr auto kAxolotlRules = std::to_array<KeyRule>({
    {"base_model", RuleKind::kCopy, "model_name_or_path", ""},
    {"base_model_config", RuleKind::kNotNeeded, "", kOwnFiles},
    {"model_type", RuleKind::kNotNeeded, "", kOwnFiles},
    {"tokenizer_type", RuleKind::kNotNeeded, "", kOwnFiles},
    {"tokenizer_config", RuleKind::kUnsupported, "", "the tokenizer is that of the model"},
    {"tokenizer_use_fast", RuleKind::kNotNeeded, "", kOwnFiles},
    {"is_llama_derived_model", RuleKind::kNotNeeded, "", kOwnFiles},
    {"is_mistral_derived_model", RuleKind::kNotNeeded, "", kOwnFiles},
    {"is_qwen_derived_model", RuleKind::kNotNeeded, "", kOwnFiles},
    {"revision_of_model", RuleKind::kUnsupported, "", "give the directory of that revision"},
    {"special_tokens", RuleKind::kUnsupported, "", "special tokens are those of the tokenizer"},
    {"tokens", RuleKind::kUnsupported, "", "the vocabulary is that of the checkpoint"},
    {"resize_token_embeddings_to_32x", RuleKind::kUnsupported, "",
     "the vocabulary is that of the checkpoint"},
    {"strict", RuleKind::kNotNeeded, "", "unknown keys are always refused"},
    {"plugins", RuleKind::kUnsupported, "", "there are no plugins"},
    {"liger_rope", RuleKind::kNotNeeded, "", kFused},
    {"liger_rms_norm", RuleKind::kNotNeeded, "", kFused},
    {"liger_glu_activation", RuleKind::kNotNeeded, "", kFused},
    {"liger_layer_norm", RuleKind::kNotNeeded, "", kFused},
    {"liger_fused_linear_cross_entropy", RuleKind::kNotNeeded, "", kFused},
    {"cut_cross_entropy", RuleKind::kNotNeeded, "", kFused},
    {"lora_mlp_kernel", RuleKind::kNotNeeded, "", kFused},
    {"lora_qkv_kernel", RuleKind::kNotNeeded, "", kFused},
    {"lora_o_kernel", RuleKind::kNotNeeded, "", kFused},
    {"flash_attention", RuleKind::kNotNeeded, "", kAttention},
    {"flash_attn_cross_entropy", RuleKind::kNotNeeded, "", kFused},
    {"xformers_attention", RuleKind::kNotNeeded, "", kAttention},
    {"sdp_attention", RuleKind::kNotNeeded, "", kAttention},
    {"flex_attention", RuleKind::kNotNeeded, "", kAttention},
    {"eager_attention", RuleKind::kNotNeeded, "", kAttention},
    {"s2_attention", RuleKind::kUnsupported, "", "attention is that of the model"},
    {"rope_theta", RuleKind::kUnsupported, "", "positions are those of config.json"},
    {"gptq", RuleKind::kUnsupported, "", "quantization is bitsandbytes' NF4"},
    {"bfloat16", RuleKind::kCustom, "", "", MigrateBf16},
    {"float16", RuleKind::kCustom, "", "", MigrateFp16},
    {"gpu_memory_limit", RuleKind::kCopy, "max_memory", ""},
    {"rl", RuleKind::kUnsupported, "", "training is supervised fine-tuning"},

    {"adapter", RuleKind::kCustom, "", "", MigrateAdapter},
    {"lora_model_dir", RuleKind::kCopy, "adapter", ""},
    {"lora_target_linear", RuleKind::kCustom, "", "", MigrateTargetLinear},
    {"lora_fan_in_fan_out", RuleKind::kUnsupported, "", "of GPT-2's Conv1D"},
    {"lora_out_dir", RuleKind::kUnsupported, "", "the adapter lies in output_dir"},
    {"lora_on_cpu", RuleKind::kNotNeeded, "", "of merging on a GPU"},
    {"peft_use_dora", RuleKind::kCopy, "use_dora", ""},
    {"peft_use_rslora", RuleKind::kCopy, "use_rslora", ""},
    {"peft_layers_to_transform", RuleKind::kCopy, "layers_to_transform", ""},
    {"peft_init_lora_weights", RuleKind::kCopy, "init_lora_weights", ""},
    {"peft", RuleKind::kUnsupported, "", "see init_lora_weights"},
    {"relora_steps", RuleKind::kUnsupported, "", kLora},
    {"unfrozen_parameters", RuleKind::kUnsupported, "", "only adapters are trained"},
    {"lora_target_parameters", RuleKind::kUnsupported, "", "adapters belong to linears"},
    {"loraplus_lr_embedding", RuleKind::kCopy, "embedding_learning_rate", ""},

    {"datasets", RuleKind::kCustom, "", "", MigrateTraining},
    {"test_datasets", RuleKind::kCustom, "", "", MigrateTest},
    {"pretraining_dataset", RuleKind::kUnsupported, "", "give text files as dataset"},
    {"dataset_prepared_path", RuleKind::kNotNeeded, "", "data are read as they are needed"},
    {"dataset_processes", RuleKind::kNotNeeded, "", "all threads read data"},
    {"dataset_keep_in_memory", RuleKind::kNotNeeded, "", "data are read as they are needed"},
    {"shuffle_merged_datasets", RuleKind::kCopy, "shuffle", ""},
    {"shuffle_before_merging_datasets", RuleKind::kNotNeeded, "", "all samples are shuffled"},
    {"dataset_exact_deduplication", RuleKind::kUnsupported, "",
     "duplicates are counted; remove them from the file"},
    {"excess_length_strategy", RuleKind::kCopy, "over_long", ""},
    {"min_sample_len", RuleKind::kUnsupported, "", "remove short samples from the file"},
    {"chat_template", RuleKind::kCustom, "", "", MigrateChatTemplate},
    {"chat_template_jinja", RuleKind::kUnsupported, "",
     "write it into a file and give that as chat_template"},
    {"default_system_message", RuleKind::kUnsupported, "", "put a system turn into the data"},
    {"sequence_len", RuleKind::kCopy, "max_length", ""},
    {"pad_to_sequence_len", RuleKind::kNotNeeded, "", "batches are never padded"},
    {"sample_packing", RuleKind::kCopy, "packing", ""},
    {"eval_sample_packing", RuleKind::kNotNeeded, "", "evaluation has no padding to save"},
    {"multipack_real_batches", RuleKind::kNotNeeded, "", "batches are never padded"},
    {"sample_packing_group_size", RuleKind::kNotNeeded, "", "all samples are packed together"},
    {"sample_packing_bin_size", RuleKind::kNotNeeded, "", "all samples are packed together"},
    {"train_on_inputs", RuleKind::kCopy, "train_on_inputs", ""},
    {"val_set_size", RuleKind::kCopy, "val_set_size", ""},

    {"micro_batch_size", RuleKind::kCopy, "per_device_train_batch_size", ""},
    {"batch_size", RuleKind::kUnsupported, "",
     "say per_device_train_batch_size and gradient_accumulation_steps"},
    {"eval_batch_size", RuleKind::kNotNeeded, "", "evaluation uses the memory of training"},
    {"num_epochs", RuleKind::kCopy, "num_train_epochs", ""},
    {"lr_scheduler", RuleKind::kCopy, "lr_scheduler_type", ""},
    {"cosine_min_lr_ratio", RuleKind::kUnsupported, "", "the cosine ends at 0"},
    {"cosine_constant_lr_ratio", RuleKind::kUnsupported, "", "the cosine ends at 0"},
    {"optimizer", RuleKind::kCustom, "", "", MigrateOptimizer},
    {"embedding_lr", RuleKind::kCopy, "embedding_learning_rate", ""},
    {"embedding_lr_scale", RuleKind::kUnsupported, "", "see embedding_learning_rate"},
    {"noisy_embedding_alpha", RuleKind::kCopy, "neftune_noise_alpha", ""},
    {"loss_watchdog_threshold", RuleKind::kUnsupported, "",
     "steps that are not finite are skipped, and ten in a row end the run"},
    {"loss_watchdog_patience", RuleKind::kUnsupported, "",
     "steps that are not finite are skipped, and ten in a row end the run"},

    {"evals_per_epoch", RuleKind::kExpect, "1,0",
     "evaluation comes after each epoch; for more "
     "set eval_steps"},
    {"saves_per_epoch", RuleKind::kUnsupported, "", "set save_steps"},
    {"auto_resume_from_checkpoints", RuleKind::kCustom, "", "", MigrateAutoResume},
    {"eval_table_size", RuleKind::kUnsupported, "", "see sample_prompts"},
    {"eval_max_new_tokens", RuleKind::kUnsupported, "", "see sample_prompts"},
    {"eval_causal_lm_metrics", RuleKind::kUnsupported, "", "evaluation measures the loss"},
    {"save_first_step", RuleKind::kUnsupported, "", "set save_steps"},
    {"debug", RuleKind::kNotNeeded, "", "`qlora inspect` shows what the trainer sees"},
    {"use_tensorboard", RuleKind::kUnsupported, "", "say report_to: tensorboard"},
    {"wandb_project", RuleKind::kUnsupported, "", kNoHub},
    {"wandb_entity", RuleKind::kUnsupported, "", kNoHub},
    {"wandb_watch", RuleKind::kUnsupported, "", kNoHub},
    {"wandb_name", RuleKind::kUnsupported, "", kNoHub},
    {"wandb_run_id", RuleKind::kUnsupported, "", kNoHub},
    {"wandb_log_model", RuleKind::kUnsupported, "", kNoHub},
    {"wandb_mode", RuleKind::kNotNeeded, "", kNoHub},
    {"mlflow_tracking_uri", RuleKind::kUnsupported, "", kNoHub},
    {"mlflow_experiment_name", RuleKind::kUnsupported, "", kNoHub},
    {"comet_project_name", RuleKind::kUnsupported, "", kNoHub},
    {"hub_strategy", RuleKind::kNotNeeded, "", kNoHub},
    {"hf_use_auth_token", RuleKind::kNotNeeded, "", kNoHub},
    {"ddp", RuleKind::kNotNeeded, "", kOneProcess},
    {"fsdp_version", RuleKind::kNotNeeded, "", kOneProcess},
    {"sequence_parallel_degree", RuleKind::kExpect, "1", kOneProcess},
    {"context_parallel_size", RuleKind::kExpect, "1", kOneProcess},
    {"tensor_parallel_size", RuleKind::kExpect, "1", kOneProcess},
    {"max_memory", RuleKind::kUnsupported, "", "say max_memory: 6GB for this machine"},
});

constexpr auto kAxolotlDefaults = std::to_array<ForeignDefault>({
    {"load_in_4bit", "false"},
    {"num_train_epochs", "1"},
    {"per_device_train_batch_size", "1"},
    {"gradient_accumulation_steps", "1"},
    {"max_length", "512"},
    {"warmup_ratio", "0"},
    {"lora_dropout", "0"},
});

constexpr auto kAxolotlMarks = std::to_array<std::string_view>(
    {"base_model", "micro_batch_size", "sequence_len", "datasets", "num_epochs", "adapter",
     "sample_packing", "lora_target_linear", "flash_attention", "pad_to_sequence_len",
     "dataset_prepared_path", "optimizer", "lr_scheduler", "wandb_project", "special_tokens",
     "evals_per_epoch", "saves_per_epoch", "val_set_size", "is_llama_derived_model"});

}  // namespace

const ForeignTrainer& AxolotlTrainer() {
  static const ForeignTrainer kTrainer = {
      "Axolotl",        "axolotl",     kAxolotlRules, TransformersRules(),
      kAxolotlDefaults, kAxolotlMarks, nullptr};
  return kTrainer;
}

}  // namespace qlora
