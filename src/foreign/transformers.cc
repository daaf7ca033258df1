// Keys of transformers' TrainingArguments, TRL's SFTConfig, PEFT's LoraConfig and
// BitsAndBytesConfig.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "foreign/rules.h"

namespace qlora {
namespace {

constexpr std::string_view kLogsAlways = "every step is in train_log.jsonl";
constexpr std::string_view kNative = "there is no Python and nothing to compile";
constexpr std::string_view kCheckpointIsWhole = "a checkpoint always holds everything";

void MigrateEvalStrategy(const YAML::Node& value, MigrationTarget& target) {
  const std::string text = LowerText(value);
  if (value.IsNull()) return target.NotNeeded("empty: the default");
  const bool evaluates = text == "epoch" || text == "steps";
  // `trl sft` evaluates a split of its data set; other trainers name their evaluation data.
  if (evaluates && !target.Theirs("dataset_name").empty() &&
      target.Theirs("dataset_test_split").empty()) {
    return target.Unsupported("the split test is evaluated: give its file as eval_dataset");
  }
  // YAML 1.1 reads an unquoted no as false, so either may arrive.
  if (text == "no" || text == "false") {
    target.NotNeeded(
        "without evaluation data nothing is evaluated; with them the last step always is");
  } else if (text == "epoch") {
    // transformers then does not read eval_steps.
    if (target.Theirs("eval_steps").empty()) {
      target.NotNeeded("evaluation after each epoch is the default");
    } else {
      target.LeaveAtDefault("eval_steps", "evaluation comes after each epoch");
    }
  } else if (text == "steps") {
    // A file without eval_steps: transformers takes logging_steps, 500 by default.
    const bool is_file =
        !target.Theirs("eval_strategy").empty() || !target.Theirs("evaluation_strategy").empty();
    if (is_file && target.Theirs("eval_steps").empty() &&
        target.Theirs("evals_per_epoch").empty()) {
      const std::string logging = target.Theirs("logging_steps");
      target.Carry("eval_steps", YAML::Node(logging.empty() ? "500" : logging));
    } else {
      target.NotNeeded("another key says how often");
    }
  } else {
    target.Unsupported("expected no, steps or epoch");
  }
}

void MigrateSaveStrategy(const YAML::Node& value, MigrationTarget& target) {
  const std::string text = LowerText(value);
  if (value.IsNull()) return target.NotNeeded("empty: the default");
  // transformers reads save_steps with the strategy steps alone.
  const bool gives_steps = !target.Theirs("save_steps").empty();
  if (text == "no" || text == "false") {
    // 0: no checkpoints but the one at the end.
    gives_steps ? target.LeaveAtDefault("save_steps", "the last step alone has a checkpoint")
                : target.Carry("save_steps", YAML::Node("0"));
  } else if (text == "steps") {
    target.NotNeeded("save_steps says how often");
  } else if (text == "epoch") {
    target.Carry("saves_per_epoch", YAML::Node("1"));
    if (gives_steps) target.LeaveAtDefault("save_steps", "a checkpoint comes after each epoch");
  } else if (text == "best") {
    target.Unsupported("write load_best_model_at_end: true, which keeps the best checkpoint");
  } else {
    target.Unsupported("expected no, steps or epoch");
  }
}

// Of SFTConfig, where None cuts nothing.
void MigrateLength(const YAML::Node& value, MigrationTarget& target) {
  if (!value.IsNull()) return target.Carry("max_length", value);
  target.Carry("max_length", YAML::Node("0"));
  // Longer samples than max_length has by default are named, not cut.
  target.Carry("over_long", YAML::Node("error"));
}

// transformers clips where the value is there and above 0.
void MigrateClipping(const YAML::Node& value, MigrationTarget& target) {
  double number = 0;
  const bool clips = !YAML::convert<double>::decode(value, number) || number > 0;
  target.Carry("max_grad_norm", value.IsNull() || !clips ? YAML::Node("0") : value);
}

// None and numbers that are not positive keep all checkpoints.
void MigrateSaveLimit(const YAML::Node& value, MigrationTarget& target) {
  double number = 0;
  const bool keeps_all = YAML::convert<double>::decode(value, number) && number <= 0;
  target.Carry("save_total_limit", keeps_all ? YAML::Node("0") : value);
}

// `trl sft` trains the whole model where it is not true.
void MigrateUsePeft(const YAML::Node& value, MigrationTarget& target) {
  if (BoolText(value) == "true") {
    target.NotNeeded("an adapter is always trained");
  } else {
    target.Unsupported("without it the whole model is trained; here an adapter is");
  }
}

// The best evaluation has the lowest loss or the highest accuracy.
void MigrateGreaterIsBetter(const YAML::Node& value, MigrationTarget& target) {
  const bool is_accuracy = target.Theirs("metric_for_best_model").ends_with("accuracy");
  if (value.IsNull() || BoolText(value) == (is_accuracy ? "true" : "false")) {
    target.NotNeeded("metric_for_best_model says this");
  } else {
    target.Unsupported("a low loss and a high accuracy are better");
  }
}

void MigrateTextField(const YAML::Node& value, MigrationTarget& target) {
  if (value.IsNull() || TextOf(value) == "text") {
    target.NotNeeded("texts are read from the field text");
  } else {
    target.Unsupported("rename the field to text, or give prompt_template and completion_template");
  }
}

// The schedule of the file; "" where it is not known, as on a command line.
std::string ScheduleOf(const MigrationTarget& target) {
  for (const char* key : {"lr_scheduler_type", "lr_scheduler"}) {
    if (const std::string name = target.Theirs(key); !name.empty()) return LowerCase(name);
  }
  return LowerCase(target.ValueOf("lr_scheduler_type"));
}

// Cycles of cosine_with_restarts, waves of other cosines, of which a half is the usual one. Where
// the schedule is not known, whole numbers are cycles: each option is refused for the other
// schedules.
void MigrateCycles(const YAML::Node& value, MigrationTarget& target) {
  constexpr double kMost = 1e9;
  const std::string schedule = ScheduleOf(target);
  double cycles = -1;
  const bool is_number = YAML::convert<double>::decode(value, cycles) && cycles <= kMost;
  const bool restarts =
      schedule == "cosine_with_restarts" || (schedule.empty() && std::floor(cycles) == cycles);
  const bool has_cosine = schedule.starts_with("cosine") || schedule == "warmup_stable_decay";
  if (!is_number || !(cycles > 0) || !(schedule.empty() || has_cosine)) {
    target.Unsupported(
        "lr_scheduler_cycles of lr_scheduler_type cosine_with_restarts and lr_scheduler_waves of "
        "other cosines take a positive number");
  } else if (cycles == (restarts ? 1 : 0.5)) {
    target.NotNeeded("the cosine falls once by default");
  } else {
    target.Carry(restarts ? "lr_scheduler_cycles" : "lr_scheduler_waves",
                 YAML::Node(fmt::format("{}", cycles)));
  }
}

// The parameters of schedules, with our options.
constexpr std::pair<std::string_view, const char*> kScheduleParameters[] = {
    {"min_lr", "min_lr"},
    {"lr_end", "min_lr"},
    {"min_lr_rate", "min_lr_rate"},
    {"min_lr_ratio", "min_lr_rate"},
    {"power", "lr_scheduler_power"},
    {"num_cycles", ""},
    {"timescale", "lr_scheduler_timescale"},
    {"num_decay_steps", "lr_decay_steps"},
    {"decay_type", "lr_decay_type"},
    {"num_stable_steps", "lr_stable_steps"},
    {"warmup_type", "lr_warmup_type"},
    {"warmup_lr_rate", "lr_warmup_rate"},
};

void MigrateScheduleParameter(const std::string& key, const YAML::Node& value,
                              MigrationTarget& target) {
  const auto* const known =
      std::find_if(std::begin(kScheduleParameters), std::end(kScheduleParameters),
                   [&](const auto& entry) { return entry.first == key; });
  if (known == std::end(kScheduleParameters)) {
    target.Unsupported(fmt::format(
        "schedules have no parameter {} here; theirs are min_lr, min_lr_rate, lr_scheduler_cycles "
        "and lr_scheduler_waves (num_cycles), lr_scheduler_power (power), lr_scheduler_timescale "
        "(timescale), lr_decay_steps (num_decay_steps), lr_decay_type (decay_type), "
        "lr_stable_steps (num_stable_steps), lr_warmup_type (warmup_type) and lr_warmup_rate "
        "(warmup_lr_rate)",
        key));
  } else if (IsNone(value)) {
    target.NotNeeded("empty: the default");
  } else if (key == "num_cycles") {
    MigrateCycles(value, target);
  } else if (key == "num_decay_steps" && IsOff(value)) {
    target.Unsupported("without a decay the schedule is lr_scheduler_type constant_with_warmup");
  } else {
    target.Carry(known->second, value);
  }
}

// A map, or JSON as a text.
void MigrateScheduleParameters(const YAML::Node& given, MigrationTarget& target) {
  YAML::Node value = given;
  if (given.IsScalar()) {
    try {
      value = YAML::Load(given.Scalar());
    } catch (const YAML::Exception&) {
      return target.Unsupported("expected a map, such as {num_cycles: 4}");
    }
  }
  if (value.IsNull() || (!value.IsScalar() && value.size() == 0)) {
    return target.NotNeeded("empty: the default");
  }
  if (!value.IsMap()) return target.Unsupported("expected a map, such as {num_cycles: 4}");
  for (const auto& entry : value) {
    const std::string key = TextOf(entry.first);
    target.Part("lr_scheduler_kwargs." + key, entry.second);
    MigrateScheduleParameter(key, entry.second, target);
  }
}

void MigrateBestMetric(const YAML::Node& value, MigrationTarget& target) {
  if (value.IsNull()) return target.NotNeeded("empty: the default");
  std::string text = LowerText(value);
  // transformers takes the metric with and without the prefix.
  if (text.starts_with("eval_")) text = text.substr(5);
  if (text == "mean_token_accuracy" || text == "accuracy") text = "token_accuracy";
  target.Carry("metric_for_best_model", YAML::Node(text));
}

void MigrateSampling(const YAML::Node& value, MigrationTarget& target) {
  const std::string text = LowerText(value);
  if (text == "sequential") {
    target.Carry("shuffle", YAML::Node("false"));
  } else {
    target.NotNeeded("each epoch has a random order, and batches are never padded");
  }
}

// The value is a dtype.
void MigratePrecision(const YAML::Node& value, MigrationTarget& target) {
  std::string text = LowerText(value);
  if (text.empty()) return target.NotNeeded("empty: compute_dtype auto chooses");
  // As Python prints the dtype.
  if (text.starts_with("torch.")) text = text.substr(6);
  if (text == "bf16") text = "bfloat16";
  if (text == "float" || text == "fp32") text = "float32";
  if (text == "float16" || text == "fp16" || text == "half") {
    target.Unsupported(kNoFloat16);
  } else {
    target.Carry("compute_dtype", YAML::Node(text));
  }
}

void MigrateMaxSteps(const YAML::Node& value, MigrationTarget& target) {
  double number = 0;
  if (value.IsNull() || (YAML::convert<double>::decode(value, number) && number <= 0)) {
    target.NotNeeded("num_train_epochs says how long");
  } else {
    target.Carry("max_steps", value);
  }
}

// PEFT's true is our default: A at random, B zero.
void MigrateInit(const YAML::Node& value, MigrationTarget& target) {
  const std::string text = LowerText(value);
  if (text == "true" || text.empty()) {
    target.Carry("init_lora_weights", YAML::Node("default"));
  } else if (text == "false" || text == "gaussian" || text == "orthogonal" || text == "eva" ||
             text == "corda" || text.starts_with("pissa_niter_")) {
    target.Unsupported("the choices are true, pissa, olora and loftq");
  } else {
    target.Carry("init_lora_weights", value);
  }
}

void MigrateReportTo(const YAML::Node& value, MigrationTarget& target) {
  YAML::Node wanted(YAML::NodeType::Sequence);
  // A list may name several trackers: each is accounted for alone.
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

constexpr KeyRule kTransformersRules[] = {
    // The names that this program shares with transformers and PEFT, with the same meaning.
    rule::Same(
        "model_name_or_path load_in_4bit bnb_4bit_quant_type bnb_4bit_use_double_quant lora_r "
        "lora_alpha lora_dropout lora_target_modules exclude_modules use_rslora use_dora "
        "modules_to_save layers_to_transform rank_pattern alpha_pattern "
        "packing assistant_only_loss per_device_train_batch_size "
        "gradient_accumulation_steps "
        "num_train_epochs learning_rate lr_scheduler_type warmup_ratio "
        "weight_decay adam_beta1 adam_beta2 adam_epsilon loraplus_lr_ratio min_lr min_lr_rate "
        "neftune_noise_alpha label_smoothing_factor seed output_dir overwrite_output_dir "
        "eval_on_start "
        "load_best_model_at_end early_stopping_patience early_stopping_threshold "
        "resume_from_checkpoint logging_dir ddp_timeout"),
    // The same meaning under another name.
    rule::Copy("model_name_or_path", "model model_id base_model_name_or_path"),
    rule::Copy("bnb_4bit_use_double_quant", "use_bnb_nested_quant"),
    rule::Copy("lora_r", "r"),
    rule::Copy("lora_target_modules", "target_modules"),
    rule::Copy("modules_to_save", "lora_modules_to_save"),
    rule::Copy("val_set_size", "test_split_size"),
    rule::Copy("max_length", "max_seq_length"),
    rule::Copy("chat_template", "chat_template_path"),
    rule::Copy("per_device_train_batch_size", "per_gpu_train_batch_size"),
    rule::File("dataset", "dataset dataset_name train_file"),
    rule::File("eval_dataset", "eval_dataset validation_file"),
    // A number of steps; transformers also takes a share of the run.
    rule::Steps("eval_ratio", "eval_steps"),
    rule::Steps("save_ratio", "save_steps"),
    rule::Steps("", "logging_steps"),
    rule::Custom(MigrateLength, "max_length"),
    rule::Custom(MigrateClipping, "max_grad_norm"),
    rule::Custom(MigrateSaveLimit, "save_total_limit"),
    rule::Custom(MigrateUsePeft, "use_peft"),
    rule::Custom(MigrateGreaterIsBetter, "greater_is_better"),
    rule::Custom(MigrateTextField, "dataset_text_field"),
    rule::Custom(MigrateScheduleParameters, "lr_scheduler_kwargs"),
    // The value itself has to be translated.
    rule::Custom(MigratePrecision, "compute_dtype bnb_4bit_compute_dtype"),
    rule::Custom(MigrateLoadType, "torch_dtype dtype"),
    rule::Custom(MigrateMaxSteps, "max_steps"),
    rule::Custom(MigrateWarmup, "warmup_steps"),
    rule::Custom(MigrateInit, "init_lora_weights peft_init_lora_weights"),
    rule::Custom(MigrateBf16, "bf16"),
    rule::Custom(MigrateFp16, "fp16"),
    rule::Custom(MigrateTrainOnPrompt, "completion_only_loss"),
    rule::Custom(MigrateSampling, "train_sampling_strategy"),
    rule::Custom(MigrateOptimizer, "optim"),
    rule::Custom(MigrateCheckpointing, "gradient_checkpointing use_gradient_checkpointing"),
    rule::Custom(MigrateEvalStrategy, "eval_strategy evaluation_strategy"),
    rule::Custom(MigrateSaveStrategy, "save_strategy"),
    rule::Custom(MigrateBestMetric, "metric_for_best_model"),
    rule::Custom(MigrateReportTo, "report_to"),
    // Settings with one value that is always so here; any other is not supported.
    rule::Expect("bitsandbytes,bnb", "quantization is bitsandbytes' NF4", "quant_method"),
    rule::Expect("lora", "the adapter is LoRA", "peft_type"),
    rule::Expect("causal_lm", "models continue text", "task_type lora_task_type"),
    rule::Expect("none", "biases are not trained", "bias"),
    rule::Expect("false", "an adapter is trained", "inference_mode"),
    rule::Expect("train", "a file is one split; save it as a file", "dataset_train_split"),
    rule::Expect("bfd", "samples stay whole", "packing_strategy"),
    rule::Expect("keep_start", "over_long: truncate keeps the start", "truncation_mode"),
    rule::Expect("true", "the verb train trains", "do_train"),
    rule::Expect("true", "files are safetensors", "save_safetensors"),
    rule::Expect("0,1", kRanks, "tp_size"),
    // Settings about PyTorch, CUDA, several processes or the hub, which change nothing in the
    // result.
    rule::NotNeeded("bytes are stored as bytes", "bnb_4bit_quant_storage"),
    rule::NotNeeded("of 8-bit bases",
                    "llm_int8_threshold llm_int8_has_fp16_weight llm_int8_enable_fp32_cpu_offload"),
    rule::NotNeeded("code of checkpoints is never run", "trust_remote_code model_code_revision"),
    rule::NotNeeded("attention never stores its matrix",
                    "attn_implementation use_flash_attention_2"),
    rule::NotNeeded("training needs no cache", "use_cache"),
    rule::NotNeeded(kRanks,
                    "device_map megatron_core dataloader_persistent_workers eval_use_gather_object "
                    "save_on_each_node log_level_replica log_on_each_node ray_scope mp_parameters "
                    "dispatch_batches split_batches ddp_broadcast_buffers fsdp_min_num_params "
                    "fsdp_transformer_layer_cls_to_wrap local_rank ddp_backend "
                    "ddp_find_unused_parameters ddp_bucket_cap_mb accelerator_config xpu_backend"),
    rule::NotNeeded("weights are quantized as they are read", "low_cpu_mem_usage"),
    rule::NotNeeded("the kernels are fused as they are",
                    "use_liger use_liger_kernel liger_kernel_config"),
    rule::NotNeeded(kNative,
                    "torch_compile torch_compile_backend torch_compile_mode use_ipex jit_mode_eval "
                    "torchdynamo peft_version runtime_config"),
    rule::NotNeeded("a CUDA setting", "tf32"),
    rule::NotNeeded("nothing is computed in float16",
                    "fp16_opt_level fp16_backend half_precision_backend"),
    rule::NotNeeded("evaluation computes as training does", "bf16_full_eval"),
    rule::NotNeeded("a value of use_qalora", "qalora_group_size"),
    rule::NotNeeded("tied embeddings and heads stay tied", "ensure_weight_tying"),
    rule::NotNeeded("files are always read as they are needed", "dataset_streaming"),
    rule::NotNeeded("each epoch has a random order; see shuffle", "shuffle_dataset"),
    rule::NotNeeded("packing looks at all samples", "num_of_sequences"),
    rule::NotNeeded("packing counts tokens", "chars_per_token"),
    rule::NotNeeded("all threads read data", "dataset_num_proc dataloader_num_workers"),
    rule::NotNeeded("data are read as they are needed",
                    "dataset_batch_size dataloader_prefetch_factor"),
    rule::NotNeeded("evaluation has no padding to save", "eval_packing"),
    rule::NotNeeded("seed alone decides the order of the data", "data_seed"),
    rule::NotNeeded("batches are never padded, so grouping would save nothing", "group_by_length"),
    rule::NotNeeded("batches are never padded", "padding_free pad_to_multiple_of pad_token"),
    rule::NotNeeded("other fields are ignored", "remove_unused_columns"),
    rule::NotNeeded("of CUDA", "dataloader_pin_memory"),
    rule::NotNeeded("lengths are known", "length_column_name"),
    rule::NotNeeded("the formats of the data name their fields", "label_names"),
    rule::NotNeeded("evaluation uses the memory of training; its batch changes nothing",
                    "per_device_eval_batch_size per_gpu_eval_batch_size"),
    rule::NotNeeded("logits are never kept",
                    "eval_accumulation_steps batch_eval_metrics eval_do_concat_batches "
                    "include_inputs_for_metrics include_for_metrics use_legacy_prediction_loop "
                    "past_index prediction_loss_only"),
    rule::NotNeeded("there is one way to do it here", "gradient_checkpointing_kwargs"),
    rule::NotNeeded("the loss counts tokens, always", "average_tokens_across_devices"),
    rule::NotNeeded("given evaluation data, training evaluates", "do_eval"),
    rule::NotNeeded(kCheckpointIsWhole, "restore_callback_states_from_checkpoint"),
    rule::NotNeeded(kLogsAlways,
                    "logging_strategy logging_first_step include_tokens_per_second "
                    "include_num_input_tokens_seen skip_memory_metrics"),
    rule::NotNeeded("such steps are skipped and counted", "logging_nan_inf_filter"),
    rule::NotNeeded("messages are few", "log_level"),
    rule::NotNeeded("bars are drawn on terminals only", "disable_tqdm"),
    rule::NotNeeded("a run has the name of its output_dir", "run_name"),
    rule::NotNeeded(kNoHub,
                    "project trackio_space_id hub_model_id hub_strategy hub_private_repo hub_token "
                    "hub_always_push hub_revision push_to_hub_model_id push_to_hub_organization "
                    "push_to_hub_token"),
    rule::NotNeeded("qlora computes on the CPU", "use_cpu no_cuda"),
    rule::NotNeeded("every run gives the same bits", "deterministic full_determinism"),
    rule::NotNeeded("TPUs are not used", "tpu_metrics_debug"),
    rule::NotNeeded("`qlora inspect` shows what the trainer sees", "debug"),
    rule::NotNeeded("Ctrl+C and SIGTERM save a checkpoint", "enable_jit_checkpoint"),
    rule::NotNeeded("memory is planned and fixed", "torch_empty_cache_steps"),
    // Settings that would change the training. Switched off, they are not needed.
    rule::Custom(MigratePreferenceMethod, "rlhf"),
    rule::Unsupported("bases are held in 4 or in 16 bits", "load_in_8bit"),
    rule::Unsupported("the linears of the blocks are quantized, head and embeddings never",
                      "llm_int8_skip_modules"),
    rule::Unsupported(kNative, "model_init_kwargs auto_mapping dataset_kwargs"),
    rule::Unsupported("give the directory of that revision as model_name_or_path",
                      "base_model_revision model_revision"),
    rule::Unsupported(kNoFloat16, "fp16_full_eval"),
    rule::Unsupported(
        "adapters belong to linears; experts of gpt-oss are named in lora_target_modules",
        "target_parameters lora_target_parameters"),
    rule::Unsupported("biases are not trained", "lora_bias"),
    rule::Unsupported("of GPT-2's Conv1D, which no family here has", "fan_in_fan_out"),
    rule::Unsupported("the family of the model names its layers", "layers_pattern"),
    rule::Unsupported(kRanks,
                      "megatron_config parallelism_config fsdp fsdp_config deepspeed sharded_ddp"),
    rule::Unsupported("see init_lora_weights",
                      "loftq_config eva_config corda_config lora_ga_config"),
    rule::Unsupported("give the directory of that revision", "revision"),
    rule::Unsupported("see modules_to_save: embed_tokens", "trainable_token_indices"),
    rule::Unsupported("the model is that of the checkpoint", "layer_replication"),
    rule::Unsupported("a run trains one adapter", "arrow_config"),
    rule::Unsupported("adapters are LoRA for all tokens", "alora_invocation_tokens"),
    rule::Unsupported("adapters are LoRA", "use_qalora use_bdlora"),
    rule::Unsupported("data sets are files; save that part as one", "dataset_config"),
    rule::Unsupported("give the file as eval_dataset", "dataset_test_split"),
    rule::Unsupported("the tokenizer's EOS is used", "eos_token"),
    rule::Unsupported("no sample is left out of an epoch", "dataloader_drop_last"),
    rule::Unsupported("`qlora plan` says what fits", "auto_find_batch_size"),
    rule::Unsupported("the optimizer updates the adapter", "optim_target_modules"),
    rule::Unsupported("optimizers have no other parameters here", "optim_args"),
    rule::Unsupported("choose one of the values of optim", "adafactor"),
    rule::Unsupported("gradient_checkpointing lowers the memory of activations",
                      "activation_offloading"),
    rule::Unsupported("see `qlora generate`", "do_predict"),
    rule::Unsupported("evaluation starts with the run", "eval_delay"),
    rule::Unsupported(kCheckpointIsWhole, "save_only_model"),
    rule::Unsupported("resume continues at the next sample", "ignore_data_skip"),
    rule::Unsupported(kNoHub, "push_to_hub"),
    rule::Unsupported("Apple's GPUs are not used", "use_mps_device"),
    rule::Unsupported("TPUs are not used", "tpu_num_cores"),
};

}  // namespace

void MigrateLoadType(const YAML::Node& value, MigrationTarget& target) {
  const std::string text = LowerText(value);
  const bool is_said = !target.Theirs("bnb_4bit_compute_dtype").empty() ||
                       !target.Theirs("compute_dtype").empty() ||
                       BoolText(target.TheirValue("bf16")) == "true";
  if (text.empty() || text == "auto" || is_said) {
    target.NotNeeded("compute_dtype says what products are computed in");
  } else {
    MigratePrecision(value, target);
  }
}

std::span<const KeyRule> TransformersRules() { return kTransformersRules; }

}  // namespace qlora
