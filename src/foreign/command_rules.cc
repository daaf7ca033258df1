// Options of other command lines: short flags, and names that llama.cpp, mlx-lm, Unsloth and
// scripts use. The command line of every verb and the YAML of `train` know them.
#include "foreign/rules.h"

namespace qlora {
namespace {

constexpr std::string_view kOwnTokenizer = "the tokenizer is that of the model";
constexpr std::string_view kOnCpu = "qlora computes on the CPU";
constexpr std::string_view kNoEffect = "";
constexpr std::string_view kChatVerb = "write `qlora chat MODEL`";

// The length of samples; a model that only generates uses its whole context.
void MigrateContext(const YAML::Node& value, MigrationTarget& target) {
  // Verbs that train have max_length, a server has context_length, other verbs have neither.
  if (target.Has("max_length")) {
    target.Carry("max_length", value);
  } else if (target.Has("context_length")) {
    target.Carry("context_length", value);
  } else {
    target.NotNeeded("the context is that of the model");
  }
}

// The folder to which mlx-lm's training writes the adapter, and in which its other verbs find it.
void MigrateAdapterPath(const YAML::Node& value, MigrationTarget& target) {
  // Only training has a learning rate: there the path would be written to, elsewhere it is read.
  if (target.Has("learning_rate")) {
    target.Unsupported(
        "write --output_dir for the folder of the new adapter, or --adapter for an adapter to "
        "continue with");
  } else {
    target.Carry("adapter", value);
  }
}

// Unsloth's type of an exported file, and LLaMA-Factory's library for the base.
void MigrateQuantizationMethod(const YAML::Node& value, MigrationTarget& target) {
  const std::string method = TextOf(value);
  if (target.Has("outtype")) {
    target.Unsupported("write --outtype");
  } else if (method == "bnb" || method == "bitsandbytes") {
    target.NotNeeded("quantization is bitsandbytes' NF4");
  } else {
    target.Unsupported("quantization is bitsandbytes' NF4; write --load_in_4bit");
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
  // A flag means the newest checkpoint, a text names one.
  target.Carry("resume_from_checkpoint", YAML::Node(text == "true" ? "auto" : text));
}

constexpr KeyRule kCommandRules[] = {
    // Several keys of ours, where verbs call it differently: the first that the verb has is set.
    rule::Copy("model_name_or_path",
               "m base model_path model_dir model_name hf hfr hf_path hf_repo "
               "pretrained_model_name_or_path"),
    rule::Copy("prompt", "p"),
    rule::Copy("max_new_tokens", "n max_tokens max_gen_toks n_predict predict num_predict"),
    rule::Copy("threads", "t num_threads n_threads jobs"),
    rule::Copy("prompt_file,file", "f"),
    rule::Copy("output,out,output_dir", "o"),
    rule::Copy("seed", "s random_state"),
    rule::Copy("lora_dropout", "dropout"),
    rule::Copy("chat_template", "chat_template_file"),
    rule::Copy("adapter", "a lora lora_path adapter_dir"),
    rule::Copy("dataset",
               "d train_dataset training_data train_data train_path train_files dataset_path "
               "data_path data_file data_files data_dir"),
    rule::Copy("system", "sys system_prompt"),
    rule::Copy("eval_dataset",
               "val_dataset valid_dataset validation_dataset val_data eval_file eval_path"),
    rule::Copy("val_set_size", "validation_split val_ratio test_size"),
    rule::Copy("max_steps",
               "iters max_iters num_iters steps num_steps num_train_steps train_steps total_steps"),
    rule::Copy("num_train_epochs", "num_epoch n_epochs epoch"),
    rule::Copy("per_device_train_batch_size", "bs train_batch_size per_device_batch_size"),
    rule::Copy("gradient_accumulation_steps",
               "grad_accum grad_accum_steps grad_accumulation_steps gradient_accumulation "
               "accumulation_steps"),
    rule::Copy("gradient_checkpointing", "grad_checkpoint"),
    rule::Copy("max_grad_norm", "grad_clip"),
    rule::Copy("weight_decay", "wd"),
    rule::Copy("lr_scheduler_type", "scheduler lr_schedule"),
    rule::Copy("logging_steps", "steps_per_report log_every"),
    rule::Copy("eval_steps", "steps_per_eval eval_every"),
    rule::Copy("save_steps", "save_every checkpoint_steps"),
    rule::Copy("output_dir", "output"),
    rule::Copy("output_dir,output,out", "out output_path out_dir out_file save_dir save_path"),
    rule::Copy("temperature", "temp"),
    rule::Copy("repetition_penalty", "repeat_penalty rep_pen"),
    rule::Copy("prompt_file", "file"),
    rule::Copy("output", "outfile"),
    rule::Custom(
        MigrateContext,
        "c seq_len seq_length sequence_length max_seq_len ctx ctx_size n_ctx context_length "
        "max_model_len"),
    rule::Copy("max_sequences", "np parallel n_parallel max_num_seqs"),
    rule::Copy("served_model_name", "alias"),
    rule::Custom(MigrateQuantizationMethod, "quantization_method"),
    rule::Custom(MigrateBits, "bits"),
    rule::Custom(MigrateAdapterPath, "adapter_path"),
    rule::Custom(MigrateTrainOnPrompt, "mask_prompt"),
    rule::Custom(MigrateResume, "resume resume_from"),
    // For verbs without an option `device`.
    rule::Expect("auto,cpu", kOnCpu, "device"),
    rule::Expect("lora", "adapters are LoRA; see use_dora", "fine_tune_type"),
    rule::Expect("true", "chat templates are always Jinja", "jinja"),
    rule::Expect("true",
                 "answers alone are trained on; for prompts as well write --train_on_inputs",
                 "train_on_responses_only"),
    rule::Expect("true", "answers are printed as they are written", "stream"),
    rule::Expect("false", "adapters are trained, not the model", "full_finetuning"),
    rule::NotNeeded("memory is planned from the options", "gpu_memory_utilization float8_kv_cache"),
    rule::NotNeeded("answers are computed by one program", "fast_inference max_lora_rank"),
    // Said, not refused: scripts pass such flags along.
    rule::NotNeeded(kNoEffect, "v q verbose quiet"),
    rule::NotNeeded("attention never stores its matrix", "fa"),
    rule::NotNeeded(kOnCpu, "ngl gpu_layers n_gpu_layers"),
    rule::NotNeeded(kRanks, "num_gpus num_processes nproc_per_node"),
    rule::NotNeeded("the verb train trains", "train"),
    rule::NotNeeded("`qlora generate` answers once", "no_cnv no_conversation st single_turn"),
    rule::NotNeeded("how many tokens are read at once follows from the memory",
                    "ub ubatch_size batch_size"),
    rule::NotNeeded("files are mapped, or copied where that is faster: see copy_weights", "mmap"),
    rule::NotNeeded("no memory is locked", "mlock"),
    rule::NotNeeded("metrics are at /metrics", "metrics"),
    rule::NotNeeded("colours follow the terminal; NO_COLOR switches them off", "color colors"),
    rule::NotNeeded("memory is planned and fixed", "clear_cache_threshold"),
    rule::NotNeeded("`qlora eval` reads the whole file", "test_batches"),
    rule::NotNeeded("all evaluation data are evaluated", "val_batches"),
    rule::NotNeeded("merged weights are written in 16 bits", "de_quantize"),
    // -b counts tokens in llama.cpp, samples elsewhere: a guess would change the run.
    rule::Unsupported("write --per_device_train_batch_size, in samples", "b"),
    rule::Unsupported(kChatVerb, "i cnv interactive conversation"),
    rule::Unsupported(kOwnTokenizer,
                      "tokenizer tokenizer_name tokenizer_path tokenizer_name_or_path"),
    // Arguments of Python's trainers that are objects.
    rule::Unsupported("write its values as options: lora_r, lora_alpha, lora_dropout, "
                      "lora_target_modules ...",
                      "peft_config lora_config"),
    rule::Unsupported("write its values as options: learning_rate, max_steps, max_length ...",
                      "args training_args training_arguments sft_config"),
    rule::Unsupported("write its values as options: load_in_4bit, bnb_4bit_quant_type ...",
                      "quantization_config bnb_config"),
    rule::Unsupported(kOwnTokenizer, "processing_class"),
    rule::Unsupported("records are laid out by dataset_format, prompt_template and chat_template",
                      "formatting_func formatting_prompts_func"),
    rule::NotNeeded("sequences are batched without padding", "data_collator"),
    rule::Unsupported("loss, perplexity and token accuracy are computed", "compute_metrics"),
    rule::Unsupported("in Python, give functions as on_step, on_eval, on_checkpoint", "callbacks"),
    rule::Unsupported("write --load_in_4bit, or use `qlora quantize`", "quantize"),
    rule::Unsupported("write --bnb_4bit_quant_type, or --outtype in `qlora export`", "quant"),
    rule::Unsupported("for a GGUF file write `qlora export MODEL FILE.gguf --outtype TYPE`",
                      "outtype"),
    rule::Unsupported("write --compute_dtype float32, or --outtype f32 in `qlora export`", "fp32"),
    rule::Unsupported("write --adapter and the folder of the file", "adapter_file"),
    rule::Unsupported("write --adapter and the folder of the adapter", "resume_adapter_file"),
    rule::Unsupported("write --layers_to_transform, such as 16-31", "num_layers lora_layers"),
    rule::Unsupported("write --lora_r, --lora_alpha, --lora_dropout", "lora_parameters"),
    rule::Unsupported("use `qlora eval` on the file", "test"),
    rule::Unsupported("write --warmup_steps or --warmup_ratio", "warmup"),
    rule::Unsupported("write --overwrite to replace what is there", "force"),
    rule::Unsupported(kNoHub, "wandb"),
    rule::Unsupported("generation ends at the stop tokens of the model",
                      "stop stop_sequence reverse_prompt"),
    rule::Unsupported("write --chat false", "ignore_chat_template"),
    rule::Unsupported("models are folders: write `qlora pull ORG/NAME`, then --model ORG/NAME",
                      "hf_file hff model_url mu"),
    rule::Unsupported(
        "a prompt is read as it is: write line breaks as $'\\n' in the shell, or --prompt_file",
        "e escape"),
    rule::Unsupported("write --repetition_penalty, which looks at the whole text",
                      "repeat_last_n presence_penalty frequency_penalty"),
    rule::Unsupported("an answer ends at the model's stop tokens; write --max_new_tokens",
                      "ignore_eos"),
    rule::Unsupported("write --adapter; an adapter has the scale that it was trained with",
                      "lora_scaled"),
    rule::Unsupported("write --lora_alpha, which is scale times lora_r", "scale"),
    rule::Unsupported("write --format hf for a merged model, or --format gguf", "save_method"),
    rule::Unsupported("write --format gguf", "export_gguf"),
};

}  // namespace

std::span<const KeyRule> CommandRules() { return kCommandRules; }

}  // namespace qlora
