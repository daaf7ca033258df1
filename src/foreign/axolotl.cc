// Axolotl: the YAML files of `axolotl train`.
#include <algorithm>
#include <array>
#include <string>

#include "foreign/axolotl_files.h"
#include "foreign/axolotl_layout.h"
#include "foreign/rules.h"

namespace qlora {
namespace {

constexpr std::string_view kOwnFiles = "the files of the checkpoint say this";
constexpr std::string_view kAttention = "attention never stores its matrix";
constexpr std::string_view kFused = "the kernels are fused as they are";
constexpr std::string_view kLora = "adapters are LoRA";

bool TrainsPreferencesThere(const MigrationTarget& target) {
  return !IsOff(YAML::Node(target.Theirs("rl")));
}

// Settings of DPO, which train nothing without it.
void MigrateDpoLoss(const YAML::Node& value, MigrationTarget& target) {
  if (!TrainsPreferencesThere(target)) return target.NotNeeded("there is no rl: dpo");
  MigrateLossType(value, target);
}
void MigrateDpoSmoothing(const YAML::Node& value, MigrationTarget& target) {
  if (!TrainsPreferencesThere(target)) return target.NotNeeded("there is no rl: dpo");
  target.Carry("label_smoothing_factor", value);
}

void MigrateAdapter(const YAML::Node& value, MigrationTarget& target) {
  const std::string text = TextOf(value);
  // Axolotl's `adapter` names the method; here it is the folder of an adapter.
  if (text == "qlora") {
    target.Carry("load_in_4bit", YAML::Node("true"));
  } else if (text == "lora") {
    // `lora` holds the base in 16 bits, unless load_in_4bit or load_in_8bit say otherwise.
    target.NotNeeded("the adapter is LoRA; load_in_4bit says how the base is held");
  } else {
    target.Unsupported("adapters are LoRA; other training is not done");
  }
}

// The names that a data set of chat_template gives to messages, role and content: the names of
// OpenAI's form, or of ShareGPT.
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
  // The newer spelling of the two keys above, which wins where both are given.
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
  // No option of this program takes other names; the data have to be renamed.
  if (names == MessageNames() || names == kShareGptNames) {
    target.NotNeeded("implied by dataset_format");
  } else {
    target.Unsupported("rename the fields to messages, role and content");
  }
}

constexpr std::string_view kDetected =
    "dataset_format is left out: the format of each file is detected";
constexpr std::string_view kDifferent =
    "the data sets have different types, so dataset_format is left out: the format of each file "
    "is detected";

constexpr std::string_view kOneLayout =
    "data sets of this type and of others cannot be in one run here: their prompts have different "
    "layouts";

// Our option is about all files, and its default finds the format of each file.
void CarryFormat(const char* format, MigrationTarget& target) {
  const std::string other = target.ValueOf("dataset_format");
  if (other == "template" && other != format) return target.Unsupported(kOneLayout);
  // One option for all files cannot hold two formats; detection can.
  if (!other.empty() && other != format) return target.LeaveAtDefault("dataset_format", kDifferent);
  target.Carry("dataset_format", YAML::Node(format));
}

// A type without a format of ours.
void DetectFormat(MigrationTarget& target) {
  if (target.ValueOf("dataset_format") == "template") return target.Unsupported(kOneLayout);
  target.LeaveAtDefault("dataset_format", kDetected);
}

// A prompt_template lays out the records of all files, so it is not for files whose formats are
// named or detected.
void CarryTemplates(const FieldTemplates& layout, MigrationTarget& target) {
  const std::string other = target.ValueOf("dataset_format");
  const bool is_template = other.empty() || other == "template";
  if (!is_template || target.IsLeftAtDefault("dataset_format")) {
    return target.Unsupported(kOneLayout);
  }
  target.Carry("dataset_format", YAML::Node("template"));
  target.Carry("prompt_template", YAML::Node(layout.prompt));
  target.Carry("completion_template", YAML::Node(layout.completion));
  // The text is Axolotl's own, also for models with a chat template.
  target.Carry("prompt_layout", YAML::Node("text"));
}

// Of pairs: chat_template.default, chatml.intel, llama3.argilla ... Pairs are read by their fields.
void MigratePairType(const YAML::Node& type, MigrationTarget& target) {
  if (type.IsMap()) {
    return target.Unsupported(
        "the text may differ: name the fields prompt, chosen and rejected, and look at the result "
        "of `qlora inspect`: the chat template lays them out");
  }
  const std::string name = TextOf(type);
  const std::string family = name.substr(0, name.find('.'));
  if (family == "chatml" || family == "llama3") {
    target.Carry("chat_template", YAML::Node(family));
  } else if (name.empty() || family == "chat_template") {
    target.NotNeeded("pairs are read by the names of their fields");
  } else {
    target.Unsupported(
        "the text may differ: pairs are read by the names of their fields, and the chat template "
        "lays them out; look at the result of `qlora inspect`");
  }
}

// chat_template, alpaca, completion, alpaca_chat.load_qa ...
void MigrateType(const YAML::Node& item, MigrationTarget& target) {
  const YAML::Node type = item["type"];
  const std::string name = TextOf(type);
  const auto layout = type.IsMap() ? AxolotlLayout(type) : AxolotlLayout(name);
  if (TrainsPreferencesThere(target)) {
    MigratePairType(type, target);
  } else if (layout) {
    CarryTemplates(*layout, target);
  } else if (name == "chat_template") {
    const bool sharegpt = NamesOf(item) == kShareGptNames;
    CarryFormat(sharegpt ? "sharegpt" : "messages", target);
  } else if (name == "alpaca") {
    CarryFormat("alpaca", target);
    // Axolotl writes Alpaca's own text, also for models with a chat template.
    target.Carry("prompt_layout", YAML::Node("text"));
  } else if (name == "completion" || name == "pretrain") {
    // Texts without a prompt.
    CarryFormat("text", target);
  } else if (name == "sharegpt") {
    CarryFormat("sharegpt", target);
    target.Unsupported(
        "the text may differ: its layout is another one in each version of Axolotl; here the chat "
        "template decides: name one with chat_template");
  } else if (type.IsMap()) {
    DetectFormat(target);
    target.Unsupported(
        "the text may differ: write these formats as prompt_template and completion_template");
  } else if (name == "input_output") {
    DetectFormat(target);
    target.Unsupported(
        "segments with labels of their own are not read; write ids and labels as format input_ids");
  } else {
    DetectFormat(target);
    target.Unsupported(
        "the text may differ: no layout of that name is known here; write it as prompt_template "
        "and completion_template, and look at the result of `qlora inspect`");
  }
}

void MigrateChatTemplate(const YAML::Node& value, MigrationTarget& target) {
  // Axolotl's word for the template of the checkpoint.
  if (TextOf(value) == "tokenizer_default" || TextOf(value).empty()) {
    target.NotNeeded("the checkpoint's own chat template is used");
  } else if (TextOf(value) == "chatml" || TextOf(value) == "llama3") {
    target.Carry("chat_template", value);
  } else if (TextOf(value) == "qwen_25") {
    target.Carry("chat_template", YAML::Node("qwen"));
  } else {
    target.Unsupported(kOtherTemplate);
  }
}

// The field of `type: completion`.
void MigrateField(const YAML::Node& value, MigrationTarget& target) {
  if (TextOf(value) == "text") {
    target.NotNeeded("texts are read from the field text");
  } else {
    target.Unsupported("rename the field to text");
  }
}

bool IsAssistantAlone(const YAML::Node& roles) {
  const auto assistant = [](const YAML::Node& role) {
    return TextOf(role) == "assistant" || TextOf(role) == "gpt";
  };
  return roles.IsSequence() ? std::all_of(roles.begin(), roles.end(), assistant) : assistant(roles);
}

void MigrateDatasets(const YAML::Node& value, MigrationTarget& target, const char* list,
                     const char* our_key) {
  if (IsOff(value)) return target.NotNeeded("empty: no data");
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
      // Each key of each entry is accounted for under its path, such as datasets[0].type.
      target.Part(name + "." + part, entry.second);
      // A name of the hub is carried over as well: `qlora pull --dataset` has put it into the
      // cache.
      const bool names_files = !IsOff(item["data_files"]);
      if (part == "path" && names_files) {
        target.NotNeeded("data_files names the files");
      } else if (part == "path" || (part == "data_files" && names_files)) {
        AddFiles(item, target, our_key);
      } else if (part == "weight") {
        CarryWeight(entry.second, target, our_key);
      } else if (part == "split" && SliceOf(entry.second)) {
        SliceOf(entry.second)->empty() ? target.NotNeeded("a file is one split")
                                       : target.Done("written behind the file");
      } else if (part == "split") {
        target.Unsupported("a file is one split: save that one as a file");
      } else if (part == "type") {
        MigrateType(item, target);
      } else if (part == "chat_template") {
        MigrateChatTemplate(entry.second, target);
      } else if (IsMessageName(part)) {
        MigrateMessageName(item, target);
      } else if (part == "field" && TextOf(item["type"]) != "chat_template") {
        MigrateField(entry.second, target);
      } else if ((part == "train_on_eos" && TextOf(entry.second) == "turn") ||
                 (part == "roles_to_train" && IsAssistantAlone(entry.second))) {
        target.NotNeeded("the assistant's turns with their ends are trained on");
      } else if (part == "train_on_eos" || part == "roles_to_train" || part == "train_on_eot") {
        target.Unsupported(
            "other tokens are trained on here: the assistant's turns with their ends");
      } else if (part == "ds_type") {
        target.NotNeeded("a file is read as what it is");
      } else if (part == "preprocess_shards" || part == "trust_remote_code") {
        target.NotNeeded("data are read as they are needed, and no code of theirs is run");
      } else if (part == "shards" || part == "shards_idx") {
        target.Unsupported("write a part of the file as FILE[:10%]");
      } else if (IsOff(entry.second)) {
        target.NotNeeded("empty: the default");
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

// A pad token alone changes nothing.
void MigrateSpecialTokens(const YAML::Node& value, MigrationTarget& target) {
  if (IsOff(value)) return target.NotNeeded("empty: those of the tokenizer");
  if (!value.IsMap()) return target.Unsupported("special tokens are those of the tokenizer");
  for (const auto& entry : value) {
    const std::string name = TextOf(entry.first);
    target.Part("special_tokens." + name, entry.second);
    if (IsOff(entry.second)) {
      target.NotNeeded("empty: that of the tokenizer");
    } else if (name == "pad_token") {
      target.NotNeeded("batches are never padded");
    } else {
      target.Unsupported("special tokens are those of the tokenizer");
    }
  }
}

// Axolotl takes 0 at its word; without the key a ratio decides.
void MigrateWarmupSteps(const YAML::Node& value, MigrationTarget& target) {
  double steps = 0;
  if (YAML::convert<double>::decode(value, steps) && steps == 0) {
    return target.Carry("warmup_ratio", YAML::Node("0"));
  }
  MigrateWarmup(value, target);
}

void MigratePreferences(const YAML::Node& value, MigrationTarget& target) {
  RefuseRewards("rl", value);
  MigratePreferenceMethod(value, target);
}

void MigrateAutoResume(const YAML::Node& value, MigrationTarget& target) {
  if (TextOf(value) == "true") {
    target.Carry("resume_from_checkpoint", YAML::Node("auto"));
  } else {
    target.NotNeeded("switched off");
  }
}

constexpr KeyRule kAxolotlRules[] = {
    // Names that are looked up before the names of transformers, because some differ in meaning:
    // max_memory, adapter, batch_size.
    rule::Same("train_on_inputs val_set_size"),
    rule::Copy("model_name_or_path", "base_model"),
    rule::NotNeeded("of a GPU; max_memory limits the memory of this machine", "gpu_memory_limit"),
    rule::Copy("adapter", "lora_model_dir"),
    rule::Copy("use_dora", "peft_use_dora"),
    rule::Copy("use_rslora", "peft_use_rslora"),
    rule::Copy("layers_to_transform", "peft_layers_to_transform"),
    rule::Copy("embedding_learning_rate", "loraplus_lr_embedding embedding_lr"),
    rule::Copy("min_lr_rate", "cosine_min_lr_ratio"),
    // None leaves the default of transformers there, which is ours.
    rule::Same("max_grad_norm evals_per_epoch saves_per_epoch"),
    rule::Custom(MigrateWarmupSteps, "warmup_steps"),
    rule::NotNeeded("each epoch has a random order, as there", "shuffle_merged_datasets"),
    rule::Custom(MigrateSpecialTokens, "special_tokens"),
    rule::Custom(MigratePreferences, "rl"),
    rule::Custom(MigrateDpoLoss, "dpo_loss_type"),
    rule::Custom(MigrateDpoSmoothing, "dpo_label_smoothing"),
    rule::Copy("over_long", "excess_length_strategy"),
    rule::Copy("max_length", "sequence_len"),
    rule::Copy("packing", "sample_packing"),
    rule::Copy("per_device_train_batch_size", "micro_batch_size"),
    rule::Copy("num_train_epochs", "num_epochs"),
    rule::Copy("lr_scheduler_type", "lr_scheduler"),
    rule::Copy("neftune_noise_alpha", "noisy_embedding_alpha"),
    rule::Custom(MigrateBf16, "bfloat16"),
    rule::Custom(MigrateFp16, "float16"),
    rule::Custom(MigrateAdapter, "adapter"),
    rule::Custom(MigrateTargetLinear, "lora_target_linear"),
    rule::Custom(MigrateTraining, "datasets"),
    rule::Custom(MigrateTest, "test_datasets"),
    rule::Custom(MigrateChatTemplate, "chat_template"),
    rule::Custom(MigrateOptimizer, "optimizer"),
    rule::Custom(MigrateAutoResume, "auto_resume_from_checkpoints"),
    // Values that name the only behaviour here.
    rule::Expect("1", kRanks,
                 "sequence_parallel_degree context_parallel_size tensor_parallel_size"),
    // Settings of an implementation: they do not change the training.
    rule::NotNeeded(kOwnFiles,
                    "base_model_config model_type tokenizer_type tokenizer_use_fast "
                    "is_llama_derived_model is_mistral_derived_model is_qwen_derived_model"),
    rule::NotNeeded("unknown keys are always refused", "strict"),
    rule::NotNeeded(kFused,
                    "liger_rope liger_rms_norm liger_glu_activation liger_layer_norm "
                    "liger_fused_linear_cross_entropy cut_cross_entropy lora_mlp_kernel "
                    "lora_qkv_kernel lora_o_kernel flash_attn_cross_entropy"),
    rule::NotNeeded(
        kAttention,
        "flash_attention xformers_attention sdp_attention flex_attention eager_attention"),
    rule::NotNeeded("of merging on a GPU", "lora_on_cpu"),
    rule::NotNeeded("data are read as they are needed",
                    "dataset_prepared_path dataset_keep_in_memory"),
    rule::NotNeeded("all threads read data", "dataset_processes"),
    rule::NotNeeded("all samples are shuffled", "shuffle_before_merging_datasets"),
    rule::NotNeeded("batches are never padded", "pad_to_sequence_len multipack_real_batches"),
    rule::NotNeeded("evaluation has no padding to save", "eval_sample_packing"),
    rule::NotNeeded("all samples are packed together",
                    "sample_packing_group_size sample_packing_bin_size"),
    rule::NotNeeded("evaluation uses the memory of training", "eval_batch_size"),
    rule::NotNeeded("`qlora inspect` shows what the trainer sees", "debug"),
    rule::NotNeeded(kNoHub, "wandb_mode hub_strategy hf_use_auth_token"),
    rule::NotNeeded(kRanks, "ddp fsdp_version"),
    // Settings that would change the training.
    rule::Unsupported("the tokenizer is that of the model", "tokenizer_config"),
    rule::Unsupported("give the directory of that revision", "revision_of_model"),
    rule::Unsupported("the vocabulary is that of the checkpoint",
                      "tokens resize_token_embeddings_to_32x"),
    rule::Unsupported("there are no plugins", "plugins"),
    rule::Unsupported("attention is that of the model", "s2_attention"),
    rule::Unsupported("positions are those of config.json", "rope_theta"),
    rule::Unsupported("quantization is bitsandbytes' NF4", "gptq"),
    rule::Unsupported("of GPT-2's Conv1D", "lora_fan_in_fan_out"),
    rule::Unsupported("the adapter is stored in output_dir", "lora_out_dir"),
    rule::Unsupported("see init_lora_weights", "peft"),
    rule::Unsupported(kLora, "relora_steps"),
    rule::Unsupported("only adapters are trained", "unfrozen_parameters"),
    rule::Unsupported(
        "adapters belong to linears; experts of gpt-oss are named in lora_target_modules",
        "lora_target_parameters"),
    rule::Unsupported("give text files as dataset", "pretraining_dataset"),
    rule::Unsupported("duplicates are counted; remove them from the file",
                      "dataset_exact_deduplication"),
    rule::Unsupported("remove short samples from the file", "min_sample_len"),
    rule::Unsupported("write it into a file and give that as chat_template", "chat_template_jinja"),
    rule::Unsupported("put a system turn into the data", "default_system_message"),
    rule::Unsupported("use per_device_train_batch_size and gradient_accumulation_steps",
                      "batch_size"),
    rule::Unsupported("see lr_scheduler_type warmup_stable_decay", "cosine_constant_lr_ratio"),
    rule::Unsupported("the warm-up is linear", "lr_quadratic_warmup"),
    rule::Unsupported("see embedding_learning_rate", "embedding_lr_scale"),
    rule::Unsupported("steps that are not finite are skipped, and ten in a row end the run",
                      "loss_watchdog_threshold loss_watchdog_patience"),
    rule::Unsupported("set save_steps", "save_first_step"),
    rule::Unsupported("see sample_prompts", "eval_table_size eval_max_new_tokens"),
    rule::Unsupported("evaluation measures the loss", "eval_causal_lm_metrics"),
    rule::Unsupported("use report_to: tensorboard", "use_tensorboard"),
    rule::Unsupported(
        kNoHub,
        "wandb_project wandb_entity wandb_watch wandb_name wandb_run_id wandb_log_model "
        "mlflow_tracking_uri mlflow_experiment_name comet_project_name"),
    rule::Unsupported("use max_memory: 6GB for this machine", "max_memory"),
};

constexpr auto kAxolotlDefaults = std::to_array<ForeignDefault>({
    // Axolotl's defaults where ours differ, for keys that the file does not set.
    {"load_in_4bit", "false"},
    {"num_train_epochs", "1"},
    {"per_device_train_batch_size", "1"},
    {"gradient_accumulation_steps", "1"},
    {"max_length", "512"},
    // Of at most 100 steps there, which matters from 3334 steps on.
    {"warmup_ratio", "0.03"},
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
      .name = "Axolotl",
      .from = "axolotl",
      .rules = kAxolotlRules,
      .more_rules = TransformersRules(),
      .defaults = kAxolotlDefaults,
      .marks = kAxolotlMarks,
      .complete = CompletePreferences,
  };
  return kTrainer;
}

}  // namespace qlora
