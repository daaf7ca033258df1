// LLaMA-Factory: the YAML files of `llamafactory-cli train`.
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <optional>
#include <sstream>

#include "base/text.h"
#include "foreign/dataset_info.h"
#include "foreign/rules.h"

namespace qlora {
namespace {

constexpr std::string_view kTextOnly = "models read and write text";
constexpr std::string_view kNoDpo = "a setting of stage dpo, and the stage is another one";

void MigrateFinetuningType(const YAML::Node& value, MigrationTarget& target) {
  if (value.IsScalar() && value.Scalar() == "lora") {
    target.NotNeeded("the adapter is LoRA");
  } else {
    target.Unsupported("adapters are LoRA");
  }
}

void MigrateQuantizationBit(const YAML::Node& value, MigrationTarget& target) {
  // quantization_bit: 8 is another method; none keeps the base in 16 bits.
  if (value.IsNull()) {
    target.Carry("load_in_4bit", YAML::Node("false"));
  } else if (value.IsScalar() && value.Scalar() == "4") {
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
    {"deepseek3", "deepseek3"},
    {"default", "human"},
    {"gemma", "gemma"},
    {"gemma3", "gemma"},
    {"gemma3n", "gemma"},
    {"granite3", "granite3"},
    {"intern_s1", "chatml"},
    {"llama2", "llama2"},
    {"llama3", "llama3_untrimmed"},
    {"llama4", "llama4"},
    {"ministral", "ministral"},
    {"mistral", "mistral"},
    {"mistral_small", "mistral_small"},
    {"phi", "phi"},
    {"phi4", "phi4"},
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
  target.Unsupported(kOtherTemplate);
}

// The folder of dataset_info.json: as LLaMA-Factory finds it, from the current folder.
std::string DatasetDir(const MigrationTarget& target) {
  const std::string given = target.Theirs("dataset_dir");
  return given.empty() ? "data" : given;
}

void MigrateDatasetDir(const YAML::Node& value, MigrationTarget& target) {
  // Of a command line, which has no list of names.
  const bool is_read =
      target.Theirs("dataset_dir") == TextOf(value) && HasDatasetInfo(DatasetDir(target));
  if (is_read) {
    target.NotNeeded("its dataset_info.json is read, and files are written with their paths");
  } else {
    target.Unsupported("give whole paths in dataset");
  }
}

// The first records that max_samples takes of each data set, as a slice of ours; "" for all.
std::string SliceOfMost(const MigrationTarget& target) {
  const std::string most = target.Theirs("max_samples");
  const bool is_number =
      !most.empty() && most != "0" && most.find_first_not_of("0123456789") == std::string::npos;
  return is_number ? "[:" + most + "]" : "";
}

void MigrateMostSamples(const YAML::Node& value, MigrationTarget& target) {
  if (IsOff(value)) return target.NotNeeded("switched off");
  SliceOfMost(target).empty() ? target.Unsupported("write FILE[:1000] for the first records")
                              : target.Done("written behind each file");
}

void MigrateStage(const YAML::Node& value, MigrationTarget& target) {
  RefuseRewards("stage", value);
  if (HasWord("dpo kto", TextOf(value))) return MigratePreferenceMethod(value, target);
  if (value.IsNull() || TextOf(value) == "sft") {
    target.NotNeeded("training is supervised fine-tuning");
  } else {
    target.Unsupported("training is supervised fine-tuning");
  }
}

// Settings of stage dpo, which train nothing in others.
void MigratePreferenceLoss(const YAML::Node& value, MigrationTarget& target) {
  if (target.Theirs("stage") != "dpo") return target.NotNeeded(kNoDpo);
  MigrateLossType(value, target);
}
void MigrateDpoSmoothing(const YAML::Node& value, MigrationTarget& target) {
  if (target.Theirs("stage") != "dpo") return target.NotNeeded(kNoDpo);
  target.Carry("label_smoothing_factor", value);
}

// -log p of each chosen answer, averaged over its tokens. A command line names no stage.
void MigratePreferenceMix(const YAML::Node& value, MigrationTarget& target) {
  if (IsOff(value) || TextOf(value) == "0.0") return target.NotNeeded("switched off");
  const std::string stage = target.Theirs("stage");
  if (stage == "kto") {
    return target.Unsupported("-log p of the answers beside kto is not trained");
  }
  if (!stage.empty() && stage != "dpo") return target.NotNeeded(kNoDpo);
  target.Carry("rpo_alpha", value);
  target.Carry("nll_over", YAML::Node("answers"));
}

// None switches off what is on by default.
void MigrateDoubleQuantization(const YAML::Node& value, MigrationTarget& target) {
  target.Carry("bnb_4bit_use_double_quant", value.IsNull() ? YAML::Node("false") : value);
}

// A data set that dataset_info.json names, or a file by itself, which has no templates. One pair of
// templates is for all files of a run.
void MigrateDataset(const NamedDataset& dataset, const std::string& name, MigrationTarget& target,
                    const char* key) {
  if (!dataset.fault.empty()) {
    return target.Unsupported(fmt::format("'{}' of dataset_info.json: {}", name, dataset.fault));
  }
  if (dataset.prefers && !HasWord("dpo kto", target.Theirs("stage"))) {
    return target.Unsupported(fmt::format(
        "'{}' of dataset_info.json: preference pairs are not trained on with stage sft", name));
  }
  const std::pair<const char*, const std::string&> templates[] = {
      {"prompt_template", dataset.prompt_template},
      {"completion_template", dataset.completion_template}};
  const bool is_first = target.ValueOf("dataset").empty() && target.ValueOf("eval_dataset").empty();
  for (const auto& [option, text] : templates) {
    if (is_first && !text.empty()) target.Carry(option, YAML::Node(text));
    if (target.ValueOf(option) == (text.empty() ? "" : OneLine(YAML::Node(text)))) continue;
    return target.Unsupported(fmt::format(
        "'{}' has other columns than the data set before; one layout is for all files", name));
  }
  std::error_code ignored;
  if (!SliceOfMost(target).empty() && std::filesystem::is_directory(dataset.path, ignored)) {
    target.Unsupported("max_samples of a folder: a slice is one of each file here");
    return target.AddDataset(key, dataset.path);
  }
  target.AddDataset(key, dataset.path + SliceOfMost(target));
}

// Names from dataset_info.json, or files.
void MigrateFiles(const YAML::Node& value, MigrationTarget& target, const char* key) {
  std::vector<std::string> names;
  if (value.IsSequence()) {
    for (const YAML::Node& item : value) names.push_back(item.IsScalar() ? item.Scalar() : "");
  } else if (value.IsScalar()) {
    // A list may be one text: "identity, alpaca_en_demo".
    std::istringstream words(value.Scalar());
    for (std::string word; std::getline(words >> std::ws, word, ',');) names.push_back(word);
  }
  const std::string folder = DatasetDir(target);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string& name = names[i];
    if (names.size() > 1) target.Part(fmt::format("{}[{}]", key, i), YAML::Node(name));
    if (const std::optional<NamedDataset> named = FindNamedDataset(folder, name)) {
      MigrateDataset(*named, name, target, key);
      continue;
    }
    // A file has an extension; a name of dataset_info.json stands for a file that only that list
    // names.
    if (name.find('.') == std::string::npos) {
      target.Unsupported(fmt::format(
          "'{}' is a name of dataset_info.json, {} {}; give its file as {}", name,
          HasDatasetInfo(folder) ? "and not in that of" : "which is not in", folder, key));
    } else {
      MigrateDataset({.path = name}, name, target, key);
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

// Of each conversation, only the last turn is trained on.
void MigrateMaskHistory(const YAML::Node& value, MigrationTarget& target) {
  if (Squeezed(TextOf(value)) == "true") {
    target.Carry("train_turns", YAML::Node("last"));
  } else {
    target.NotNeeded("switched off");
  }
}

constexpr KeyRule kLlamaFactoryRules[] = {
    // The same meaning under another name.
    rule::Copy("adapter", "adapter_name_or_path"),
    rule::Copy("bnb_4bit_quant_type", "quantization_type"),
    rule::Custom(MigrateDoubleQuantization, "double_quantization"),
    rule::Custom(MigrateStage, "stage"),
    rule::Custom(MigratePreferenceMix, "pref_ftx"),
    rule::Custom(MigratePreferenceLoss, "pref_loss"),
    rule::Custom(MigrateDpoSmoothing, "dpo_label_smoothing"),
    rule::Custom(MigrateMostSamples, "max_samples"),
    rule::Custom(MigrateThinking, "enable_thinking"),
    rule::Copy("lora_r", "lora_rank"),
    rule::Copy("lora_target_modules", "lora_target"),
    rule::Copy("modules_to_save", "additional_target"),
    rule::Copy("embedding_learning_rate", "loraplus_lr_embedding"),
    rule::Copy("max_length", "cutoff_len"),
    rule::Copy("train_on_inputs", "train_on_prompt"),
    rule::Copy("val_set_size", "val_size"),
    rule::Copy("packing", "neat_packing"),
    rule::Custom(MigrateFinetuningType, "finetuning_type"),
    rule::Custom(MigrateQuantizationBit, "quantization_bit"),
    rule::Custom(MigrateDatasets, "dataset"),
    rule::Custom(MigrateEvalDatasets, "eval_dataset"),
    rule::Custom(MigrateDatasetDir, "dataset_dir"),
    rule::Custom(MigrateMaskHistory, "mask_history"),
    rule::Custom(MigrateTemplate, "template"),
    // Settings with one value that is always so here.
    rule::Expect("bnb,bitsandbytes", "quantization is bitsandbytes' NF4", "quantization_method"),
    rule::Expect("concat", "give weights as FILE:WEIGHT", "mix_strategy"),
    // Settings that change nothing in the result.
    rule::NotNeeded("a run is one process", "quantization_device_map ray_run_name"),
    rule::NotNeeded("norms are computed in float32", "upcast_layernorm"),
    rule::NotNeeded("logits are float32", "upcast_lmhead_output"),
    rule::NotNeeded("attention never stores its matrix", "flash_attn"),
    rule::NotNeeded("the kernels are fused as they are",
                    "enable_liger_kernel use_unsloth use_unsloth_gc"),
    rule::NotNeeded("tokenizer.json is read", "use_fast_tokenizer"),
    rule::NotNeeded("HF_HOME and HF_HUB_CACHE say where models are stored", "cache_dir"),
    rule::NotNeeded(kNoHub, "hf_hub_token"),
    rule::NotNeeded(kTextOnly,
                    "image_max_pixels video_max_pixels freeze_vision_tower "
                    "freeze_multi_modal_projector media_dir"),
    rule::NotNeeded("of finetuning_type: freeze", "freeze_trainable_layers"),
    rule::NotNeeded("files are always read as they are needed", "streaming"),
    rule::NotNeeded("shuffling is exact", "buffer_size"),
    rule::NotNeeded("changed files are noticed", "overwrite_cache"),
    rule::NotNeeded("data are read as they are needed", "preprocessing_batch_size tokenized_path"),
    rule::NotNeeded("all threads read data", "preprocessing_num_workers"),
    rule::NotNeeded("batches are never padded", "ignore_pad_token_for_loss"),
    rule::NotNeeded("`qlora report` draws the curves of a run", "plot_loss"),
    rule::NotNeeded("evaluation reports what it measures", "compute_accuracy"),
    // Settings that would change the training.
    rule::Unsupported("merge the first adapter with `export`", "create_new_adapter"),
    rule::Unsupported("adapter and moments are float32", "pure_bf16"),
    rule::Unsupported("use gradient_checkpointing: false", "disable_gradient_checkpointing"),
    rule::Unsupported("positions are those of config.json", "rope_scaling"),
    rule::Unsupported("attention is that of the model", "shift_attn"),
    rule::Unsupported("the model is that of the checkpoint", "mixture_of_depths"),
    rule::Unsupported("the vocabulary is that of the checkpoint",
                      "resize_vocab new_special_tokens"),
    rule::Unsupported("special tokens stay whole", "split_special_tokens"),
    rule::Unsupported("see init_lora_weights", "pissa_init pissa_iter pissa_convert"),
    rule::Unsupported("adapters are LoRA", "use_galore use_apollo use_badam"),
    rule::Unsupported("see optim", "use_adam_mini use_muon"),
    rule::Unsupported("put a system turn into the data", "default_system"),
    rule::Unsupported("give weights as FILE:WEIGHT", "interleave_probs"),
    rule::Unsupported("evaluate files with `qlora eval`", "eval_on_each_dataset"),
    rule::Unsupported("tools are rendered by the chat template", "tool_format"),
    rule::Unsupported("see sample_prompts", "predict_with_generate"),
    rule::Unsupported(kNoHub, "use_swanlab"),
};

// optim, schedule and step counts have the meaning of transformers.
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

// By these keys --from auto recognises the file.
constexpr auto kLlamaFactoryMarks = std::to_array<std::string_view>(
    {"stage", "finetuning_type", "cutoff_len", "template", "quantization_bit", "lora_rank",
     "lora_target", "dataset_dir", "overwrite_cache", "preprocessing_num_workers", "plot_loss",
     "val_size", "flash_attn", "adapter_name_or_path"});

// lora_alpha is twice the rank unless it is given.
void Complete(MigrationTarget& target) {
  // There the base without the adapter is the reference, also of an adapter that is continued.
  CompletePreferences(target);
  if (!target.ValueOf("preference_loss").empty() && !target.ValueOf("adapter").empty()) {
    target.SetDefault("reference", "base");
  }
  const std::string rank = target.ValueOf("lora_r");
  if (target.ValueOf("lora_alpha").empty()) {
    // 8 is the default rank of LLaMA-Factory.
    target.SetDefault("lora_alpha",
                      std::to_string(2 * ParseNumber<std::int64_t>(rank).value_or(8)));
  }
}

}  // namespace

const ForeignTrainer& LlamaFactoryTrainer() {
  static const ForeignTrainer kTrainer = {
      .name = "LLaMA-Factory",
      .from = "llama-factory",
      .rules = kLlamaFactoryRules,
      .more_rules = TransformersRules(),
      .defaults = kLlamaFactoryDefaults,
      .marks = kLlamaFactoryMarks,
      .complete = Complete,
  };
  return kTrainer;
}

}  // namespace qlora
