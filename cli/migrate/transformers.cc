// Keys of transformers' TrainingArguments, TRL's SFTConfig, PEFT's LoraConfig and
// BitsAndBytesConfig.
#include <algorithm>
#include <array>
#include <cctype>

#include "migrate/rules.h"

namespace qlora {
namespace {

constexpr std::string_view kLogsAlways = "every step is in train_log.jsonl";
constexpr std::string_view kNative = "there is no Python and nothing to compile";
constexpr std::string_view kNoFloat16 =
    "products are bfloat16 or float32, which need no loss scaling; see compute_dtype";
constexpr std::string_view kCheckpointIsWhole = "a checkpoint always holds everything";

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string LowerText(const YAML::Node& value) {
  return value.IsScalar() ? Lower(value.Scalar()) : "";
}

void MigrateEvalStrategy(const YAML::Node& value, MigrationTarget& target) {
  const std::string text = LowerText(value);
  if (text == "no" || text == "false") {
    target.NotNeeded("without evaluation data nothing is evaluated");
  } else if (text == "epoch") {
    target.NotNeeded("evaluation after each epoch is the default");
  } else if (text == "steps") {
    target.NotNeeded("eval_steps says how often");
  } else {
    target.Unsupported("expected no, steps or epoch");
  }
}

void MigrateSaveStrategy(const YAML::Node& value, MigrationTarget& target) {
  const std::string text = LowerText(value);
  if (text == "no" || text == "false") {
    target.Carry("save_steps", YAML::Node("0"));
  } else if (text == "steps") {
    target.NotNeeded("save_steps says how often");
  } else {
    target.Carry("save_steps", YAML::Node("0"));
    target.Unsupported("checkpoints come by steps: set save_steps");
  }
}

void MigrateBestMetric(const YAML::Node& value, MigrationTarget& target) {
  std::string text = LowerText(value);
  if (text.starts_with("eval_")) text = text.substr(5);
  if (text == "mean_token_accuracy" || text == "accuracy") text = "token_accuracy";
  target.Carry("metric_for_best_model", YAML::Node(text));
}

void MigrateSaveSteps(const YAML::Node& value, MigrationTarget& target) {
  MigrateStepCount(value, target, "save_steps");
}
void MigrateEvalSteps(const YAML::Node& value, MigrationTarget& target) {
  MigrateStepCount(value, target, "eval_steps");
}
void MigrateLoggingSteps(const YAML::Node& value, MigrationTarget& target) {
  MigrateStepCount(value, target, "logging_steps");
}

void MigrateSampling(const YAML::Node& value, MigrationTarget& target) {
  const std::string text = LowerText(value);
  if (text == "sequential") {
    target.Carry("shuffle", YAML::Node("false"));
  } else {
    target.NotNeeded("each epoch has a random order, and batches are never padded");
  }
}

void MigrateDataset(const YAML::Node& value, MigrationTarget& target) {
  if (!value.IsScalar() || value.Scalar().empty()) {
    return target.Unsupported("expected the name of a file");
  }
  target.AddDataset("dataset", value.Scalar());
}

void MigrateEvalDataset(const YAML::Node& value, MigrationTarget& target) {
  if (!value.IsScalar() || value.Scalar().empty()) {
    return target.Unsupported("expected the name of a file");
  }
  target.AddDataset("eval_dataset", value.Scalar());
}

constexpr auto kTransformersRules = std::to_array<KeyRule>({
    // Model and quantization.
    {"model_name_or_path", RuleKind::kCopy, "model_name_or_path", ""},
    {"model", RuleKind::kCopy, "model_name_or_path", ""},
    {"model_id", RuleKind::kCopy, "model_name_or_path", ""},
    {"load_in_4bit", RuleKind::kCopy, "load_in_4bit", ""},
    {"load_in_8bit", RuleKind::kUnsupported, "", "bases are held in 4 or in 16 bits"},
    {"bnb_4bit_quant_type", RuleKind::kCopy, "bnb_4bit_quant_type", ""},
    {"bnb_4bit_use_double_quant", RuleKind::kCopy, "bnb_4bit_use_double_quant", ""},
    {"use_bnb_nested_quant", RuleKind::kCopy, "bnb_4bit_use_double_quant", ""},
    {"bnb_4bit_compute_dtype", RuleKind::kCustom, "", "", MigratePrecision},
    {"bnb_4bit_quant_storage", RuleKind::kNotNeeded, "", "bytes are stored as bytes"},
    {"quant_method", RuleKind::kExpect, "bitsandbytes,bnb", "quantization is bitsandbytes' NF4"},
    {"llm_int8_threshold", RuleKind::kNotNeeded, "", "of 8-bit bases"},
    {"llm_int8_skip_modules", RuleKind::kUnsupported, "",
     "the linears of the blocks are quantized, head and embeddings never"},
    {"llm_int8_has_fp16_weight", RuleKind::kNotNeeded, "", "of 8-bit bases"},
    {"llm_int8_enable_fp32_cpu_offload", RuleKind::kNotNeeded, "", "of 8-bit bases"},
    {"torch_dtype", RuleKind::kCustom, "", "", MigratePrecision},
    {"dtype", RuleKind::kCustom, "", "", MigratePrecision},
    {"trust_remote_code", RuleKind::kNotNeeded, "", "code of checkpoints is never run"},
    {"attn_implementation", RuleKind::kNotNeeded, "", "attention never stores its matrix"},
    {"use_flash_attention_2", RuleKind::kNotNeeded, "", "attention never stores its matrix"},
    {"model_init_kwargs", RuleKind::kUnsupported, "", kNative},
    {"model_code_revision", RuleKind::kNotNeeded, "", "code of checkpoints is never run"},
    {"base_model_revision", RuleKind::kUnsupported, "",
     "give the directory of that revision as model_name_or_path"},
    {"use_cache", RuleKind::kNotNeeded, "", "training needs no cache"},
    {"device_map", RuleKind::kNotNeeded, "", kOneProcess},
    {"low_cpu_mem_usage", RuleKind::kNotNeeded, "", "weights are quantized as they are read"},
    {"model_revision", RuleKind::kUnsupported, "",
     "give the directory of that revision as model_name_or_path"},
    {"use_liger_kernel", RuleKind::kNotNeeded, "", "the kernels are fused as they are"},
    {"torch_compile", RuleKind::kNotNeeded, "", kNative},
    {"torch_compile_backend", RuleKind::kNotNeeded, "", kNative},
    {"torch_compile_mode", RuleKind::kNotNeeded, "", kNative},
    {"tf32", RuleKind::kNotNeeded, "", "of CUDA; products are bfloat16 or float32"},
    {"bf16", RuleKind::kCustom, "", "", MigrateBf16},
    {"fp16", RuleKind::kCustom, "", "", MigrateFp16},
    {"fp16_opt_level", RuleKind::kNotNeeded, "", "products are bfloat16 or float32"},
    {"fp16_backend", RuleKind::kNotNeeded, "", "products are bfloat16 or float32"},
    {"half_precision_backend", RuleKind::kNotNeeded, "", "products are bfloat16 or float32"},
    {"use_ipex", RuleKind::kNotNeeded, "", kNative},
    {"jit_mode_eval", RuleKind::kNotNeeded, "", kNative},
    {"torchdynamo", RuleKind::kNotNeeded, "", kNative},
    {"liger_kernel_config", RuleKind::kNotNeeded, "", "the kernels are fused as they are"},
    {"bf16_full_eval", RuleKind::kNotNeeded, "", "evaluation computes as training does"},
    {"fp16_full_eval", RuleKind::kUnsupported, "", "products are bfloat16 or float32"},

    // Adapter.
    {"use_peft", RuleKind::kExpect, "true", "an adapter is always trained"},
    {"peft_type", RuleKind::kExpect, "lora", "the adapter is LoRA"},
    {"task_type", RuleKind::kExpect, "causal_lm", "models continue text"},
    {"lora_task_type", RuleKind::kExpect, "causal_lm", "models continue text"},
    {"r", RuleKind::kCopy, "lora_r", ""},
    {"lora_r", RuleKind::kCopy, "lora_r", ""},
    {"lora_alpha", RuleKind::kCopy, "lora_alpha", ""},
    {"lora_dropout", RuleKind::kCopy, "lora_dropout", ""},
    {"target_modules", RuleKind::kCopy, "lora_target_modules", ""},
    {"lora_target_modules", RuleKind::kCopy, "lora_target_modules", ""},
    {"exclude_modules", RuleKind::kCopy, "exclude_modules", ""},
    {"target_parameters", RuleKind::kUnsupported, "", "adapters belong to linears"},
    {"lora_target_parameters", RuleKind::kUnsupported, "", "adapters belong to linears"},
    {"bias", RuleKind::kExpect, "none", "biases are not trained"},
    {"lora_bias", RuleKind::kUnsupported, "", "biases are not trained"},
    {"fan_in_fan_out", RuleKind::kUnsupported, "", "of GPT-2's Conv1D, which no family here has"},
    {"use_rslora", RuleKind::kCopy, "use_rslora", ""},
    {"use_dora", RuleKind::kCopy, "use_dora", ""},
    {"modules_to_save", RuleKind::kCopy, "modules_to_save", ""},
    {"lora_modules_to_save", RuleKind::kCopy, "modules_to_save", ""},
    {"init_lora_weights", RuleKind::kCopy, "init_lora_weights", ""},
    {"layers_to_transform", RuleKind::kCopy, "layers_to_transform", ""},
    {"layers_pattern", RuleKind::kUnsupported, "", "the family of the model names its layers"},
    {"rank_pattern", RuleKind::kCopy, "rank_pattern", ""},
    {"alpha_pattern", RuleKind::kCopy, "alpha_pattern", ""},
    {"megatron_config", RuleKind::kUnsupported, "", kOneProcess},
    {"megatron_core", RuleKind::kNotNeeded, "", kOneProcess},
    {"loftq_config", RuleKind::kUnsupported, "", "see init_lora_weights"},
    {"inference_mode", RuleKind::kExpect, "false", "an adapter is trained"},
    {"base_model_name_or_path", RuleKind::kCopy, "model_name_or_path", ""},
    {"auto_mapping", RuleKind::kUnsupported, "", kNative},
    {"revision", RuleKind::kUnsupported, "", "give the directory of that revision"},
    {"peft_version", RuleKind::kNotNeeded, "", kNative},
    {"trainable_token_indices", RuleKind::kUnsupported, "", "see modules_to_save: embed_tokens"},
    {"layer_replication", RuleKind::kUnsupported, "", "the model is that of the checkpoint"},
    {"runtime_config", RuleKind::kNotNeeded, "", kNative},
    {"eva_config", RuleKind::kUnsupported, "", "see init_lora_weights"},
    {"corda_config", RuleKind::kUnsupported, "", "see init_lora_weights"},
    {"lora_ga_config", RuleKind::kUnsupported, "", "see init_lora_weights"},
    {"arrow_config", RuleKind::kUnsupported, "", "a run trains one adapter"},
    {"alora_invocation_tokens", RuleKind::kUnsupported, "", "adapters are LoRA for all tokens"},
    {"use_qalora", RuleKind::kUnsupported, "", "adapters are LoRA"},
    {"qalora_group_size", RuleKind::kNotNeeded, "", "a value of use_qalora"},
    {"use_bdlora", RuleKind::kUnsupported, "", "adapters are LoRA"},
    {"ensure_weight_tying", RuleKind::kNotNeeded, "", "tied embeddings and heads stay tied"},

    // Data.
    {"dataset", RuleKind::kCustom, "", "", MigrateDataset},
    {"dataset_name", RuleKind::kCustom, "", "", MigrateDataset},
    {"train_file", RuleKind::kCustom, "", "", MigrateDataset},
    {"eval_dataset", RuleKind::kCustom, "", "", MigrateEvalDataset},
    {"validation_file", RuleKind::kCustom, "", "", MigrateEvalDataset},
    {"dataset_config", RuleKind::kUnsupported, "", "data sets are files; save that part as one"},
    {"dataset_train_split", RuleKind::kExpect, "train", "a file is one split; save it as a file"},
    {"dataset_test_split", RuleKind::kUnsupported, "", "give the file as eval_dataset"},
    {"dataset_streaming", RuleKind::kNotNeeded, "", "files are always read as they are needed"},
    {"dataset_text_field", RuleKind::kExpect, "text",
     "rename the field to text, or give prompt_template and completion_template"},
    {"test_split_size", RuleKind::kCopy, "val_set_size", ""},
    {"shuffle_dataset", RuleKind::kNotNeeded, "", "each epoch has a random order; see shuffle"},
    {"num_of_sequences", RuleKind::kNotNeeded, "", "packing looks at all samples"},
    {"chars_per_token", RuleKind::kNotNeeded, "", "packing counts tokens"},
    {"dataset_num_proc", RuleKind::kNotNeeded, "", "all threads read data"},
    {"dataset_batch_size", RuleKind::kNotNeeded, "", "data are read as they are needed"},
    {"dataset_kwargs", RuleKind::kUnsupported, "", kNative},
    {"max_length", RuleKind::kCopy, "max_length", ""},
    {"max_seq_length", RuleKind::kCopy, "max_length", ""},
    {"packing", RuleKind::kCopy, "packing", ""},
    {"packing_strategy", RuleKind::kExpect, "bfd", "samples stay whole"},
    {"eval_packing", RuleKind::kNotNeeded, "", "evaluation has no padding to save"},
    {"padding_free", RuleKind::kNotNeeded, "", "batches are never padded"},
    {"pad_to_multiple_of", RuleKind::kNotNeeded, "", "batches are never padded"},
    {"pad_token", RuleKind::kNotNeeded, "", "batches are never padded"},
    {"eos_token", RuleKind::kUnsupported, "", "the tokenizer's EOS is used"},
    {"truncation_mode", RuleKind::kExpect, "keep_start", "over_long: truncate keeps the start"},
    {"completion_only_loss", RuleKind::kCustom, "", "", MigrateTrainOnPrompt},
    {"assistant_only_loss", RuleKind::kCustom, "", "", MigrateTrainOnPrompt},
    {"chat_template_path", RuleKind::kCopy, "chat_template", ""},
    {"remove_unused_columns", RuleKind::kNotNeeded, "", "other fields are ignored"},
    {"dataloader_num_workers", RuleKind::kNotNeeded, "", "all threads read data"},
    {"dataloader_pin_memory", RuleKind::kNotNeeded, "", "of CUDA"},
    {"dataloader_drop_last", RuleKind::kUnsupported, "", "no sample is left out of an epoch"},
    {"dataloader_prefetch_factor", RuleKind::kNotNeeded, "", "data are read as they are needed"},
    {"dataloader_persistent_workers", RuleKind::kNotNeeded, "", kOneProcess},
    {"group_by_length", RuleKind::kUnsupported, "",
     "batches are never padded, so grouping would save nothing"},
    {"length_column_name", RuleKind::kNotNeeded, "", "lengths are known"},
    {"train_sampling_strategy", RuleKind::kCustom, "", "", MigrateSampling},
    {"label_names", RuleKind::kNotNeeded, "", "the formats of the data name their fields"},

    // Optimization.
    {"per_device_train_batch_size", RuleKind::kCopy, "per_device_train_batch_size", ""},
    {"per_device_eval_batch_size", RuleKind::kNotNeeded, "",
     "evaluation uses the memory of training; its batch changes nothing"},
    {"per_gpu_train_batch_size", RuleKind::kCopy, "per_device_train_batch_size", ""},
    {"per_gpu_eval_batch_size", RuleKind::kNotNeeded, "",
     "evaluation uses the memory of training; its batch changes nothing"},
    {"eval_accumulation_steps", RuleKind::kNotNeeded, "", "logits are never kept"},
    {"gradient_accumulation_steps", RuleKind::kCopy, "gradient_accumulation_steps", ""},
    {"auto_find_batch_size", RuleKind::kUnsupported, "", "`qlora plan` says what fits"},
    {"num_train_epochs", RuleKind::kCopy, "num_train_epochs", ""},
    {"max_steps", RuleKind::kCopy, "max_steps", ""},
    {"learning_rate", RuleKind::kCopy, "learning_rate", ""},
    {"lr_scheduler_type", RuleKind::kCopy, "lr_scheduler_type", ""},
    {"lr_scheduler_kwargs", RuleKind::kUnsupported, "", "schedules have no other parameters here"},
    {"warmup_ratio", RuleKind::kCopy, "warmup_ratio", ""},
    {"warmup_steps", RuleKind::kCopy, "warmup_steps", ""},
    {"weight_decay", RuleKind::kCopy, "weight_decay", ""},
    {"adam_beta1", RuleKind::kCopy, "adam_beta1", ""},
    {"adam_beta2", RuleKind::kCopy, "adam_beta2", ""},
    {"adam_epsilon", RuleKind::kCopy, "adam_epsilon", ""},
    {"max_grad_norm", RuleKind::kCopy, "max_grad_norm", ""},
    {"optim", RuleKind::kCustom, "", "", MigrateOptimizer},
    {"optim_target_modules", RuleKind::kUnsupported, "", "the optimizer updates the adapter"},
    {"optim_args", RuleKind::kUnsupported, "", "optimizers have no other parameters here"},
    {"adafactor", RuleKind::kUnsupported, "", "choose one of the values of optim"},
    {"loraplus_lr_ratio", RuleKind::kCopy, "loraplus_lr_ratio", ""},
    {"neftune_noise_alpha", RuleKind::kCopy, "neftune_noise_alpha", ""},
    {"label_smoothing_factor", RuleKind::kUnsupported, "", "the loss is plain cross-entropy"},
    {"loss_type", RuleKind::kExpect, "nll,chunked_nll", "the loss is plain cross-entropy"},
    {"gradient_checkpointing", RuleKind::kCustom, "", "", MigrateCheckpointing},
    {"gradient_checkpointing_kwargs", RuleKind::kNotNeeded, "", "there is one way to do it here"},
    {"activation_offloading", RuleKind::kUnsupported, "",
     "gradient_checkpointing lowers the memory of activations"},
    {"seed", RuleKind::kCopy, "seed", ""},
    {"data_seed", RuleKind::kUnsupported, "", "seed is the one random seed; write seed"},
    {"full_determinism", RuleKind::kNotNeeded, "", "the same seed always gives the same bits"},
    {"average_tokens_across_devices", RuleKind::kNotNeeded, "", "the loss counts tokens, always"},

    // The run.
    {"output_dir", RuleKind::kCopy, "output_dir", ""},
    {"overwrite_output_dir", RuleKind::kCopy, "overwrite_output_dir", ""},
    {"do_train", RuleKind::kExpect, "true", "the verb train trains"},
    {"do_eval", RuleKind::kNotNeeded, "", "given evaluation data, training evaluates"},
    {"do_predict", RuleKind::kUnsupported, "", "see `qlora generate`"},
    {"eval_strategy", RuleKind::kCustom, "", "", MigrateEvalStrategy},
    {"evaluation_strategy", RuleKind::kCustom, "", "", MigrateEvalStrategy},
    {"eval_steps", RuleKind::kCustom, "", "", MigrateEvalSteps},
    {"eval_delay", RuleKind::kUnsupported, "", "evaluation starts with the run"},
    {"eval_on_start", RuleKind::kCopy, "eval_on_start", ""},
    {"batch_eval_metrics", RuleKind::kNotNeeded, "", "logits are never kept"},
    {"eval_do_concat_batches", RuleKind::kNotNeeded, "", "logits are never kept"},
    {"eval_use_gather_object", RuleKind::kNotNeeded, "", kOneProcess},
    {"include_inputs_for_metrics", RuleKind::kNotNeeded, "", "logits are never kept"},
    {"include_for_metrics", RuleKind::kNotNeeded, "", "logits are never kept"},
    {"use_legacy_prediction_loop", RuleKind::kNotNeeded, "", "logits are never kept"},
    {"past_index", RuleKind::kNotNeeded, "", "logits are never kept"},
    {"prediction_loss_only", RuleKind::kNotNeeded, "", "logits are never kept"},
    {"save_strategy", RuleKind::kCustom, "", "", MigrateSaveStrategy},
    {"save_steps", RuleKind::kCustom, "", "", MigrateSaveSteps},
    {"save_total_limit", RuleKind::kCopy, "save_total_limit", ""},
    {"save_only_model", RuleKind::kUnsupported, "", kCheckpointIsWhole},
    {"save_safetensors", RuleKind::kExpect, "true", "files are safetensors"},
    {"save_on_each_node", RuleKind::kNotNeeded, "", kOneProcess},
    {"load_best_model_at_end", RuleKind::kCopy, "load_best_model_at_end", ""},
    {"metric_for_best_model", RuleKind::kCustom, "", "", MigrateBestMetric},
    {"greater_is_better", RuleKind::kNotNeeded, "", "metric_for_best_model says this"},
    {"early_stopping_patience", RuleKind::kCopy, "early_stopping_patience", ""},
    {"early_stopping_threshold", RuleKind::kCopy, "early_stopping_threshold", ""},
    {"resume_from_checkpoint", RuleKind::kCopy, "resume_from_checkpoint", ""},
    {"ignore_data_skip", RuleKind::kUnsupported, "", "resuming goes on at the next sample"},
    {"restore_callback_states_from_checkpoint", RuleKind::kNotNeeded, "", kCheckpointIsWhole},
    {"logging_steps", RuleKind::kCustom, "", "", MigrateLoggingSteps},
    {"logging_strategy", RuleKind::kNotNeeded, "", kLogsAlways},
    {"logging_first_step", RuleKind::kNotNeeded, "", kLogsAlways},
    {"logging_dir", RuleKind::kCopy, "logging_dir", ""},
    {"logging_nan_inf_filter", RuleKind::kNotNeeded, "", "such steps are skipped and counted"},
    {"log_level", RuleKind::kNotNeeded, "", "messages are few"},
    {"log_level_replica", RuleKind::kNotNeeded, "", kOneProcess},
    {"log_on_each_node", RuleKind::kNotNeeded, "", kOneProcess},
    {"disable_tqdm", RuleKind::kNotNeeded, "", "bars are drawn on terminals only"},
    {"report_to", RuleKind::kCustom, "", "", MigrateReportTo},
    {"run_name", RuleKind::kNotNeeded, "", "a run has the name of its output_dir"},
    {"project", RuleKind::kNotNeeded, "", kNoHub},
    {"trackio_space_id", RuleKind::kNotNeeded, "", kNoHub},
    {"include_tokens_per_second", RuleKind::kNotNeeded, "", kLogsAlways},
    {"include_num_input_tokens_seen", RuleKind::kNotNeeded, "", kLogsAlways},
    {"skip_memory_metrics", RuleKind::kNotNeeded, "", kLogsAlways},
    {"push_to_hub", RuleKind::kUnsupported, "", kNoHub},
    {"hub_model_id", RuleKind::kNotNeeded, "", kNoHub},
    {"hub_strategy", RuleKind::kNotNeeded, "", kNoHub},
    {"hub_private_repo", RuleKind::kNotNeeded, "", kNoHub},
    {"hub_token", RuleKind::kNotNeeded, "", kNoHub},
    {"hub_always_push", RuleKind::kNotNeeded, "", kNoHub},
    {"hub_revision", RuleKind::kNotNeeded, "", kNoHub},
    {"push_to_hub_model_id", RuleKind::kNotNeeded, "", kNoHub},
    {"push_to_hub_organization", RuleKind::kNotNeeded, "", kNoHub},
    {"push_to_hub_token", RuleKind::kNotNeeded, "", kNoHub},
    {"use_cpu", RuleKind::kNotNeeded, "", "device: auto is the CPU"},
    {"no_cuda", RuleKind::kNotNeeded, "", "device: auto is the CPU"},
    {"use_mps_device", RuleKind::kUnsupported, "", "Apple's GPUs are not used"},
    {"tpu_num_cores", RuleKind::kUnsupported, "", "TPUs are not used"},
    {"tpu_metrics_debug", RuleKind::kNotNeeded, "", "TPUs are not used"},
    {"debug", RuleKind::kNotNeeded, "", "`qlora inspect` shows what the trainer sees"},
    {"ray_scope", RuleKind::kNotNeeded, "", kOneProcess},
    {"mp_parameters", RuleKind::kNotNeeded, "", kOneProcess},
    {"parallelism_config", RuleKind::kUnsupported, "", kOneProcess},
    {"dispatch_batches", RuleKind::kNotNeeded, "", kOneProcess},
    {"split_batches", RuleKind::kNotNeeded, "", kOneProcess},
    {"ddp_broadcast_buffers", RuleKind::kNotNeeded, "", kOneProcess},
    {"fsdp_min_num_params", RuleKind::kNotNeeded, "", kOneProcess},
    {"fsdp_transformer_layer_cls_to_wrap", RuleKind::kNotNeeded, "", kOneProcess},
    {"enable_jit_checkpoint", RuleKind::kNotNeeded, "", "Ctrl+C and SIGTERM save a checkpoint"},
    {"local_rank", RuleKind::kNotNeeded, "", kOneProcess},
    {"ddp_backend", RuleKind::kNotNeeded, "", kOneProcess},
    {"ddp_timeout", RuleKind::kNotNeeded, "", kOneProcess},
    {"ddp_find_unused_parameters", RuleKind::kNotNeeded, "", kOneProcess},
    {"ddp_bucket_cap_mb", RuleKind::kNotNeeded, "", kOneProcess},
    {"fsdp", RuleKind::kUnsupported, "", kOneProcess},
    {"fsdp_config", RuleKind::kUnsupported, "", kOneProcess},
    {"deepspeed", RuleKind::kUnsupported, "", kOneProcess},
    {"accelerator_config", RuleKind::kNotNeeded, "", kOneProcess},
    {"torch_empty_cache_steps", RuleKind::kNotNeeded, "", "memory is planned and fixed"},
});

}  // namespace

std::span<const KeyRule> TransformersRules() { return kTransformersRules; }

void MigratePrecision(const YAML::Node& value, MigrationTarget& target) {
  std::string text = LowerText(value);
  if (text.starts_with("torch.")) text = text.substr(6);
  if (text == "bf16") text = "bfloat16";
  if (text == "float" || text == "fp32") text = "float32";
  if (text == "float16" || text == "fp16" || text == "half") {
    target.Unsupported(kNoFloat16);
  } else {
    target.Carry("compute_dtype", YAML::Node(text));
  }
}

void MigrateBf16(const YAML::Node& value, MigrationTarget& target) {
  const std::string text = LowerText(value);
  if (text == "true" || text == "full") {
    target.Carry("compute_dtype", YAML::Node("bfloat16"));
  } else if (text == "auto") {
    target.Carry("compute_dtype", YAML::Node("auto"));
  } else {
    target.NotNeeded("compute_dtype says what products are computed in");
  }
}

void MigrateFp16(const YAML::Node& value, MigrationTarget& target) {
  if (LowerText(value) == "true") {
    target.Unsupported(kNoFloat16);
  } else {
    target.NotNeeded("compute_dtype says what products are computed in");
  }
}

void MigrateCheckpointing(const YAML::Node& value, MigrationTarget& target) {
  const std::string text = LowerText(value);
  if (text.empty() || text == "true" || text == "false") {
    target.Carry("gradient_checkpointing", value);
  } else {
    target.Carry("gradient_checkpointing", YAML::Node("true"));
  }
}

void MigrateStepCount(const YAML::Node& value, MigrationTarget& target, const char* our_key) {
  double number = 0;
  if (YAML::convert<double>::decode(value, number) && number > 0 && number < 1) {
    target.Unsupported("a share of the run; give a number of steps");
  } else {
    target.Carry(our_key, value);
  }
}

void MigrateReportTo(const YAML::Node& value, MigrationTarget& target) {
  YAML::Node wanted(YAML::NodeType::Sequence);
  const auto take = [&](const YAML::Node& name) {
    const std::string text = LowerText(name);
    if (text == "tensorboard" || text == "all") {
      wanted.push_back("tensorboard");
    } else if (text == "none" || text.empty()) {
      target.NotNeeded("train_log.jsonl is always written");
    } else {
      target.Unsupported("nothing leaves this machine; see report_to: [csv, tensorboard]");
    }
  };
  if (value.IsSequence()) {
    for (const YAML::Node& name : value) take(name);
  } else {
    take(value);
  }
  if (wanted.size() > 0) target.Carry("report_to", wanted);
}

void MigrateTrainOnPrompt(const YAML::Node& value, MigrationTarget& target) {
  const std::string text = LowerText(value);
  target.Carry("train_on_inputs", YAML::Node(text == "false" ? "true" : "false"));
}

void MigrateOptimizer(const YAML::Node& value, MigrationTarget& target) {
  const std::string text = LowerText(value);
  if (text == "adamw_torch" || text == "adamw_torch_fused" || text == "adamw_hf" ||
      text == "adamw" || text == "adamw_apex_fused") {
    target.NotNeeded("AdamW is the default");
  } else {
    target.Carry("optim", value);
  }
}

}  // namespace qlora
