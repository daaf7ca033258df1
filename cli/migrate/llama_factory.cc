// LLaMA-Factory: the YAML files of `llamafactory-cli train`.
#include <array>
#include <sstream>

#include "migrate/rules.h"

namespace qlora {
namespace {

constexpr std::string_view kTextOnly = "models read and write text";

void MigrateFinetuningType(const YAML::Node& value, MigrationTarget& target) {
  if (value.IsScalar() && value.Scalar() == "lora") {
    target.NotNeeded("the adapter is LoRA");
  } else {
    target.Unsupported("adapters are LoRA");
  }
}

void MigrateQuantizationBit(const YAML::Node& value, MigrationTarget& target) {
  if (value.IsScalar() && value.Scalar() == "4") {
    target.Carry("load_in_4bit", YAML::Node("true"));
  } else {
    target.Unsupported("bases are held in 4 or in 16 bits");
  }
}

// A name of LLaMA-Factory's list, and the built-in template that renders the same text.
struct TemplateName {
  std::string_view theirs;
  std::string_view ours;
};
constexpr auto kTemplates = std::to_array<TemplateName>({
    {"alpaca", "alpaca"},
    {"chatml", "chatml"},
    {"default", "human"},
    {"gemma", "gemma"},
    {"llama2", "llama2"},
    {"llama3", "llama3_untrimmed"},
    {"mistral", "mistral"},
    {"phi", "phi"},
    {"qwen", "qwen"},
    {"qwen3_nothink", "chatml"},
    {"smollm", "chatml"},
    {"vicuna", "vicuna"},
    {"yi", "chatml"},
    {"zephyr", "zephyr"},
});

void MigrateTemplate(const YAML::Node& value, MigrationTarget& target) {
  const std::string name = TextOf(value);
  if (name.empty()) return target.NotNeeded("the checkpoint's own chat template is used");
  for (const TemplateName& known : kTemplates) {
    if (known.theirs == name) {
      return target.Carry("chat_template", YAML::Node(std::string(known.ours)));
    }
  }
  target.Unsupported(
      "the checkpoint's own chat template is used; for another, give a Jinja file as "
      "chat_template");
}

// Names from dataset_info.json, or files.
void MigrateFiles(const YAML::Node& value, MigrationTarget& target, const char* key) {
  std::vector<std::string> names;
  if (value.IsSequence()) {
    for (const YAML::Node& item : value) names.push_back(item.IsScalar() ? item.Scalar() : "");
  } else if (value.IsScalar()) {
    std::istringstream words(value.Scalar());
    for (std::string word; std::getline(words >> std::ws, word, ',');) names.push_back(word);
  }
  for (const std::string& name : names) {
    if (name.find('.') == std::string::npos) {
      target.Unsupported("'" + name + "' is a name of dataset_info.json; give its file as " + key);
    } else {
      target.AddDataset(key, name);
    }
  }
  if (names.empty()) target.NotNeeded("empty");
}

void MigrateDatasets(const YAML::Node& value, MigrationTarget& target) {
  MigrateFiles(value, target, "dataset");
}

void MigrateEvalDatasets(const YAML::Node& value, MigrationTarget& target) {
  MigrateFiles(value, target, "eval_dataset");
}

void MigrateUnsloth(const YAML::Node& /*value*/, MigrationTarget& target) {
  target.NotNeeded("the kernels are fused as they are");
}

constexpr auto kLlamaFactoryRules = std::to_array<KeyRule>({
    {"stage", RuleKind::kExpect, "sft", "training is supervised fine-tuning"},
    {"finetuning_type", RuleKind::kCustom, "", "", MigrateFinetuningType},
    {"adapter_name_or_path", RuleKind::kCopy, "adapter", ""},
    {"create_new_adapter", RuleKind::kUnsupported, "", "merge the first adapter with `export`"},
    {"quantization_bit", RuleKind::kCustom, "", "", MigrateQuantizationBit},
    {"quantization_method", RuleKind::kExpect, "bnb,bitsandbytes",
     "quantization is bitsandbytes' NF4"},
    {"quantization_type", RuleKind::kCopy, "bnb_4bit_quant_type", ""},
    {"double_quantization", RuleKind::kCopy, "bnb_4bit_use_double_quant", ""},
    {"quantization_device_map", RuleKind::kNotNeeded, "", "a run is one process"},
    {"upcast_layernorm", RuleKind::kNotNeeded, "", "norms are computed in float32"},
    {"upcast_lmhead_output", RuleKind::kNotNeeded, "", "logits are float32"},
    {"pure_bf16", RuleKind::kUnsupported, "", "adapter and moments are float32"},
    {"flash_attn", RuleKind::kNotNeeded, "", "attention never stores its matrix"},
    {"enable_liger_kernel", RuleKind::kNotNeeded, "", "the kernels are fused as they are"},
    {"use_unsloth", RuleKind::kCustom, "", "", MigrateUnsloth},
    {"use_unsloth_gc", RuleKind::kCustom, "", "", MigrateUnsloth},
    {"disable_gradient_checkpointing", RuleKind::kUnsupported, "",
     "say gradient_checkpointing: false"},
    {"rope_scaling", RuleKind::kUnsupported, "", "positions are those of config.json"},
    {"shift_attn", RuleKind::kUnsupported, "", "attention is that of the model"},
    {"mixture_of_depths", RuleKind::kUnsupported, "", "the model is that of the checkpoint"},
    {"resize_vocab", RuleKind::kUnsupported, "", "the vocabulary is that of the checkpoint"},
    {"use_fast_tokenizer", RuleKind::kNotNeeded, "", "tokenizer.json is read"},
    {"split_special_tokens", RuleKind::kUnsupported, "", "special tokens stay whole"},
    {"new_special_tokens", RuleKind::kUnsupported, "", "the vocabulary is that of the checkpoint"},
    {"cache_dir", RuleKind::kNotNeeded, "", "HF_HOME and HF_HUB_CACHE say where models lie"},
    {"hf_hub_token", RuleKind::kNotNeeded, "", "nothing leaves this machine"},
    {"image_max_pixels", RuleKind::kNotNeeded, "", kTextOnly},
    {"video_max_pixels", RuleKind::kNotNeeded, "", kTextOnly},
    {"freeze_vision_tower", RuleKind::kNotNeeded, "", kTextOnly},
    {"freeze_multi_modal_projector", RuleKind::kNotNeeded, "", kTextOnly},

    {"lora_rank", RuleKind::kCopy, "lora_r", ""},
    {"lora_target", RuleKind::kCopy, "lora_target_modules", ""},
    {"additional_target", RuleKind::kCopy, "modules_to_save", ""},
    {"loraplus_lr_embedding", RuleKind::kCopy, "embedding_learning_rate", ""},
    {"pissa_init", RuleKind::kUnsupported, "", "see init_lora_weights"},
    {"pissa_iter", RuleKind::kUnsupported, "", "see init_lora_weights"},
    {"pissa_convert", RuleKind::kUnsupported, "", "see init_lora_weights"},
    {"use_galore", RuleKind::kUnsupported, "", "adapters are LoRA"},
    {"use_apollo", RuleKind::kUnsupported, "", "adapters are LoRA"},
    {"use_badam", RuleKind::kUnsupported, "", "adapters are LoRA"},
    {"use_adam_mini", RuleKind::kUnsupported, "", "see optim"},
    {"use_muon", RuleKind::kUnsupported, "", "see optim"},
    {"freeze_trainable_layers", RuleKind::kNotNeeded, "", "of finetuning_type: freeze"},

    {"dataset", RuleKind::kCustom, "", "", MigrateDatasets},
    {"eval_dataset", RuleKind::kCustom, "", "", MigrateEvalDatasets},
    {"dataset_dir", RuleKind::kUnsupported, "", "give whole paths in dataset"},
    {"media_dir", RuleKind::kNotNeeded, "", kTextOnly},
    {"template", RuleKind::kCustom, "", "", MigrateTemplate},
    {"default_system", RuleKind::kUnsupported, "", "put a system turn into the data"},
    {"enable_thinking", RuleKind::kUnsupported, "", "data are trained on as they are"},
    {"cutoff_len", RuleKind::kCopy, "max_length", ""},
    {"train_on_prompt", RuleKind::kCopy, "train_on_inputs", ""},
    {"mask_history", RuleKind::kUnsupported, "", "every turn of the assistant is trained on"},
    {"streaming", RuleKind::kNotNeeded, "", "files are always read as they are needed"},
    {"buffer_size", RuleKind::kNotNeeded, "", "shuffling is exact"},
    {"mix_strategy", RuleKind::kExpect, "concat", "give weights as FILE:WEIGHT"},
    {"interleave_probs", RuleKind::kUnsupported, "", "give weights as FILE:WEIGHT"},
    {"max_samples", RuleKind::kUnsupported, "", "cut the file, or give a weight: FILE:0.1"},
    {"overwrite_cache", RuleKind::kNotNeeded, "", "changed files are noticed"},
    {"preprocessing_batch_size", RuleKind::kNotNeeded, "", "data are read as they are needed"},
    {"preprocessing_num_workers", RuleKind::kNotNeeded, "", "all threads read data"},
    {"tokenized_path", RuleKind::kNotNeeded, "", "data are read as they are needed"},
    {"ignore_pad_token_for_loss", RuleKind::kNotNeeded, "", "batches are never padded"},
    {"val_size", RuleKind::kCopy, "val_set_size", ""},
    {"eval_on_each_dataset", RuleKind::kUnsupported, "", "evaluate files with `qlora eval`"},
    {"neat_packing", RuleKind::kCopy, "packing", ""},
    {"tool_format", RuleKind::kUnsupported, "", "tools are rendered by the chat template"},

    {"plot_loss", RuleKind::kNotNeeded, "", "`qlora report` draws the curves of a run"},
    {"compute_accuracy", RuleKind::kNotNeeded, "", "evaluation reports what it measures"},
    {"predict_with_generate", RuleKind::kUnsupported, "", "see sample_prompts"},
    {"use_swanlab", RuleKind::kUnsupported, "", "nothing leaves this machine"},
    {"ray_run_name", RuleKind::kNotNeeded, "", "a run is one process"},
});

// optim, schedule and step counts are those of transformers.
constexpr auto kLlamaFactoryDefaults = std::to_array<ForeignDefault>({
    {"load_in_4bit", "false"},
    {"learning_rate", "5e-5"},
    {"lr_scheduler_type", "linear"},
    {"warmup_ratio", "0"},
    {"num_train_epochs", "3"},
    {"per_device_train_batch_size", "8"},
    {"gradient_accumulation_steps", "1"},
    {"max_length", "2048"},
    {"over_long", "truncate"},
    {"prompt_layout", "chat"},
    {"save_steps", "500"},
    {"lora_r", "8"},
    {"lora_dropout", "0"},
});

constexpr auto kLlamaFactoryMarks = std::to_array<std::string_view>(
    {"stage", "finetuning_type", "cutoff_len", "template", "quantization_bit", "lora_rank",
     "lora_target", "dataset_dir", "overwrite_cache", "preprocessing_num_workers", "plot_loss",
     "val_size", "flash_attn", "adapter_name_or_path"});

// lora_alpha is twice the rank unless it is given.
void Complete(MigrationTarget& target) {
  const std::string rank = target.ValueOf("lora_r");
  if (target.ValueOf("lora_alpha").empty()) {
    target.SetDefault("lora_alpha", std::to_string(2 * std::stoll(rank.empty() ? "8" : rank)));
  }
}

}  // namespace

const ForeignTrainer& LlamaFactoryTrainer() {
  static const ForeignTrainer kTrainer = {"LLaMA-Factory",
                                          "llama-factory",
                                          kLlamaFactoryRules,
                                          TransformersRules(),
                                          kLlamaFactoryDefaults,
                                          kLlamaFactoryMarks,
                                          Complete};
  return kTrainer;
}

}  // namespace qlora
