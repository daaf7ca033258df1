// Options of other command lines: short flags, and names that llama.cpp, mlx-lm, Unsloth and
// scripts use. The command line of every verb and the YAML of `train` know them.
#include <array>

#include "migrate/rules.h"

namespace qlora {
namespace {

constexpr std::string_view kOwnTokenizer = "the tokenizer is that of the model";
constexpr std::string_view kNoPlaces = "the program itself decides where layers are computed";
constexpr std::string_view kQuiet = "messages are few; redirect standard error to be without them";
constexpr std::string_view kChatVerb = "write `qlora chat MODEL`";

// The length of samples; a model that only generates uses its whole context.
void MigrateContext(const YAML::Node& value, MigrationTarget& target) {
  if (target.Has("max_length")) {
    target.Carry("max_length", value);
  } else {
    target.NotNeeded("the context is that of the model");
  }
}

// Where mlx-lm's training writes the adapter, and where its other verbs find it.
void MigrateAdapterPath(const YAML::Node& value, MigrationTarget& target) {
  if (target.Has("learning_rate")) {
    target.Unsupported(
        "write --output_dir for the folder of the new adapter, or --adapter for an adapter to "
        "continue with");
  } else {
    target.Carry("adapter", value);
  }
}

void MigrateBits(const YAML::Node& value, MigrationTarget& target) {
  const std::string bits = TextOf(value);
  if (bits == "4") {
    target.Carry("load_in_4bit", YAML::Node("true"));
  } else if (bits == "16" || bits == "32") {
    target.Carry("load_in_4bit", YAML::Node("false"));
  } else {
    target.Unsupported("bases are held in 4 or in 16 bits; write --load_in_4bit true or false");
  }
}

void MigrateResume(const YAML::Node& value, MigrationTarget& target) {
  const std::string text = TextOf(value);
  target.Carry("resume_from_checkpoint", YAML::Node(text == "true" ? "auto" : text));
}

constexpr auto kCommandRules = std::to_array<KeyRule>({
    // Short flags.
    {"m", RuleKind::kCopy, "model_name_or_path", ""},
    {"p", RuleKind::kCopy, "prompt", ""},
    {"n", RuleKind::kCopy, "max_new_tokens", ""},
    {"t", RuleKind::kCopy, "threads", ""},
    {"c", RuleKind::kCustom, "", "", MigrateContext},
    {"f", RuleKind::kCopy, "prompt_file,file", ""},
    {"o", RuleKind::kCopy, "output,out,output_dir", ""},
    {"s", RuleKind::kCopy, "seed", ""},
    {"b", RuleKind::kUnsupported, "", "write --per_device_train_batch_size, in samples"},
    {"a", RuleKind::kCopy, "adapter", ""},
    {"d", RuleKind::kCopy, "dataset", ""},
    {"v", RuleKind::kNotNeeded, "", kQuiet},
    {"q", RuleKind::kNotNeeded, "", kQuiet},
    {"i", RuleKind::kUnsupported, "", kChatVerb},
    {"fa", RuleKind::kNotNeeded, "", "attention never stores its matrix"},
    {"ngl", RuleKind::kNotNeeded, "", kNoPlaces},
    {"cnv", RuleKind::kUnsupported, "", kChatVerb},
    {"sys", RuleKind::kCopy, "system", ""},

    // The model.
    {"model_path", RuleKind::kCopy, "model_name_or_path", ""},
    {"model_dir", RuleKind::kCopy, "model_name_or_path", ""},
    {"model_name", RuleKind::kCopy, "model_name_or_path", ""},
    {"hf_path", RuleKind::kCopy, "model_name_or_path", ""},
    {"hf_repo", RuleKind::kCopy, "model_name_or_path", ""},
    {"pretrained_model_name_or_path", RuleKind::kCopy, "model_name_or_path", ""},
    {"tokenizer", RuleKind::kUnsupported, "", kOwnTokenizer},
    {"tokenizer_name", RuleKind::kUnsupported, "", kOwnTokenizer},
    {"tokenizer_path", RuleKind::kUnsupported, "", kOwnTokenizer},
    {"tokenizer_name_or_path", RuleKind::kUnsupported, "", kOwnTokenizer},
    {"bits", RuleKind::kCustom, "", "", MigrateBits},
    {"quantize", RuleKind::kUnsupported, "", "write --load_in_4bit, or use `qlora quantize`"},
    {"device", RuleKind::kExpect, "auto,cpu", kNoPlaces},
    {"gpu_layers", RuleKind::kNotNeeded, "", kNoPlaces},
    {"n_gpu_layers", RuleKind::kNotNeeded, "", kNoPlaces},
    {"num_gpus", RuleKind::kNotNeeded, "", kOneProcess},
    {"num_processes", RuleKind::kNotNeeded, "", kOneProcess},
    {"nproc_per_node", RuleKind::kNotNeeded, "", kOneProcess},
    {"num_threads", RuleKind::kCopy, "threads", ""},
    {"n_threads", RuleKind::kCopy, "threads", ""},
    {"jobs", RuleKind::kCopy, "threads", ""},

    // The adapter.
    {"lora", RuleKind::kCopy, "adapter", ""},
    {"lora_path", RuleKind::kCopy, "adapter", ""},
    {"adapter_dir", RuleKind::kCopy, "adapter", ""},
    {"adapter_file", RuleKind::kUnsupported, "", "write --adapter and the folder of the file"},
    {"adapter_path", RuleKind::kCustom, "", "", MigrateAdapterPath},
    {"resume_adapter_file", RuleKind::kUnsupported, "",
     "write --adapter and the folder of the adapter"},
    {"fine_tune_type", RuleKind::kExpect, "lora", "adapters are LoRA; see use_dora"},
    {"num_layers", RuleKind::kUnsupported, "", "write --layers_to_transform, such as 16-31"},
    {"lora_layers", RuleKind::kUnsupported, "", "write --layers_to_transform, such as 16-31"},
    {"lora_parameters", RuleKind::kUnsupported, "", "write --lora_r, --lora_alpha, --lora_dropout"},

    // Data.
    {"train_dataset", RuleKind::kCopy, "dataset", ""},
    {"training_data", RuleKind::kCopy, "dataset", ""},
    {"train_data", RuleKind::kCopy, "dataset", ""},
    {"train_path", RuleKind::kCopy, "dataset", ""},
    {"train_files", RuleKind::kCopy, "dataset", ""},
    {"dataset_path", RuleKind::kCopy, "dataset", ""},
    {"data_path", RuleKind::kCopy, "dataset", ""},
    {"data_file", RuleKind::kCopy, "dataset", ""},
    {"data_files", RuleKind::kCopy, "dataset", ""},
    {"data_dir", RuleKind::kCopy, "dataset", ""},
    {"val_dataset", RuleKind::kCopy, "eval_dataset", ""},
    {"valid_dataset", RuleKind::kCopy, "eval_dataset", ""},
    {"validation_dataset", RuleKind::kCopy, "eval_dataset", ""},
    {"val_data", RuleKind::kCopy, "eval_dataset", ""},
    {"eval_file", RuleKind::kCopy, "eval_dataset", ""},
    {"eval_path", RuleKind::kCopy, "eval_dataset", ""},
    {"validation_split", RuleKind::kCopy, "val_set_size", ""},
    {"val_ratio", RuleKind::kCopy, "val_set_size", ""},
    {"test_size", RuleKind::kCopy, "val_set_size", ""},
    {"seq_len", RuleKind::kCustom, "", "", MigrateContext},
    {"seq_length", RuleKind::kCustom, "", "", MigrateContext},
    {"sequence_length", RuleKind::kCustom, "", "", MigrateContext},
    {"max_seq_len", RuleKind::kCustom, "", "", MigrateContext},
    {"ctx", RuleKind::kCustom, "", "", MigrateContext},
    {"ctx_size", RuleKind::kCustom, "", "", MigrateContext},
    {"n_ctx", RuleKind::kCustom, "", "", MigrateContext},
    {"context_length", RuleKind::kCustom, "", "", MigrateContext},
    {"mask_prompt", RuleKind::kCustom, "", "", MigrateTrainOnPrompt},

    // Training.
    {"train", RuleKind::kNotNeeded, "", "the verb train trains"},
    {"test", RuleKind::kUnsupported, "", "use `qlora eval` on the file"},
    {"iters", RuleKind::kCopy, "max_steps", ""},
    {"max_iters", RuleKind::kCopy, "max_steps", ""},
    {"num_iters", RuleKind::kCopy, "max_steps", ""},
    {"steps", RuleKind::kCopy, "max_steps", ""},
    {"num_steps", RuleKind::kCopy, "max_steps", ""},
    {"num_train_steps", RuleKind::kCopy, "max_steps", ""},
    {"train_steps", RuleKind::kCopy, "max_steps", ""},
    {"total_steps", RuleKind::kCopy, "max_steps", ""},
    {"num_epoch", RuleKind::kCopy, "num_train_epochs", ""},
    {"n_epochs", RuleKind::kCopy, "num_train_epochs", ""},
    {"epoch", RuleKind::kCopy, "num_train_epochs", ""},
    {"bs", RuleKind::kCopy, "per_device_train_batch_size", ""},
    {"train_batch_size", RuleKind::kCopy, "per_device_train_batch_size", ""},
    {"per_device_batch_size", RuleKind::kCopy, "per_device_train_batch_size", ""},
    {"grad_accum", RuleKind::kCopy, "gradient_accumulation_steps", ""},
    {"grad_accum_steps", RuleKind::kCopy, "gradient_accumulation_steps", ""},
    {"grad_accumulation_steps", RuleKind::kCopy, "gradient_accumulation_steps", ""},
    {"gradient_accumulation", RuleKind::kCopy, "gradient_accumulation_steps", ""},
    {"accumulation_steps", RuleKind::kCopy, "gradient_accumulation_steps", ""},
    {"grad_checkpoint", RuleKind::kCopy, "gradient_checkpointing", ""},
    {"grad_clip", RuleKind::kCopy, "max_grad_norm", ""},
    {"wd", RuleKind::kCopy, "weight_decay", ""},
    {"scheduler", RuleKind::kCopy, "lr_scheduler_type", ""},
    {"lr_schedule", RuleKind::kCopy, "lr_scheduler_type", ""},
    {"warmup", RuleKind::kUnsupported, "", "write --warmup_steps or --warmup_ratio"},
    {"steps_per_report", RuleKind::kCopy, "logging_steps", ""},
    {"log_every", RuleKind::kCopy, "logging_steps", ""},
    {"steps_per_eval", RuleKind::kCopy, "eval_steps", ""},
    {"eval_every", RuleKind::kCopy, "eval_steps", ""},
    {"val_batches", RuleKind::kNotNeeded, "", "all evaluation data are evaluated"},
    {"save_every", RuleKind::kCopy, "save_steps", ""},
    {"checkpoint_steps", RuleKind::kCopy, "save_steps", ""},
    {"resume", RuleKind::kCustom, "", "", MigrateResume},
    {"resume_from", RuleKind::kCustom, "", "", MigrateResume},
    {"output", RuleKind::kCopy, "output_dir", ""},
    {"output_path", RuleKind::kCopy, "output_dir,output,out", ""},
    {"out_dir", RuleKind::kCopy, "output_dir,output,out", ""},
    {"save_dir", RuleKind::kCopy, "output_dir,output,out", ""},
    {"save_path", RuleKind::kCopy, "output_dir,output,out", ""},
    {"force", RuleKind::kUnsupported, "", "write --overwrite to replace what is there"},
    {"wandb", RuleKind::kUnsupported, "", kNoHub},

    // Generation.
    {"max_tokens", RuleKind::kCopy, "max_new_tokens", ""},
    {"max_gen_toks", RuleKind::kCopy, "max_new_tokens", ""},
    {"n_predict", RuleKind::kCopy, "max_new_tokens", ""},
    {"predict", RuleKind::kCopy, "max_new_tokens", ""},
    {"num_predict", RuleKind::kCopy, "max_new_tokens", ""},
    {"temp", RuleKind::kCopy, "temperature", ""},
    {"repeat_penalty", RuleKind::kCopy, "repetition_penalty", ""},
    {"rep_pen", RuleKind::kCopy, "repetition_penalty", ""},
    {"system_prompt", RuleKind::kCopy, "system", ""},
    {"file", RuleKind::kCopy, "prompt_file", ""},
    {"stop", RuleKind::kUnsupported, "", "generation ends at the stop tokens of the model"},
    {"stop_sequence", RuleKind::kUnsupported, "",
     "generation ends at the stop tokens of the model"},
    {"reverse_prompt", RuleKind::kUnsupported, "",
     "generation ends at the stop tokens of the model"},
    {"interactive", RuleKind::kUnsupported, "", kChatVerb},
    {"conversation", RuleKind::kUnsupported, "", kChatVerb},
    {"ignore_chat_template", RuleKind::kUnsupported, "", "write --chat false"},
    {"verbose", RuleKind::kNotNeeded, "", kQuiet},
    {"quiet", RuleKind::kNotNeeded, "", kQuiet},

    // Export.
    {"outfile", RuleKind::kCopy, "output", ""},
    {"quantization_method", RuleKind::kUnsupported, "", "write --outtype"},
    {"save_method", RuleKind::kUnsupported, "",
     "write --format hf for a merged model, or --format gguf"},
    {"de_quantize", RuleKind::kNotNeeded, "", "merged weights are written in 16 bits"},
    {"export_gguf", RuleKind::kUnsupported, "", "write --format gguf"},
});

}  // namespace

std::span<const KeyRule> CommandRules() { return kCommandRules; }

}  // namespace qlora
