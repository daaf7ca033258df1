#include <array>
#include <utility>

#include "qlora/train.h"
#include "train/optimizer.h"
#include "train/recipe.h"
#include "train/schedule.h"
#include "train/train_log.h"

namespace qlora {

void TrainOptions::Declare(OptionTable& table) {
  table.Section("Model");
  table.Choice("preset", &preset, {"none", "qlora-paper"},
               "a recipe by name, whose values other options override");
  table.Add("model_name_or_path", &model_name_or_path,
            "Hugging Face directory, or org/name in the local cache", {"base_model", "model"});
  table.Add("output_dir", &output_dir, "where the adapter, logs and checkpoints go");
  table.Add("overwrite_output_dir", &overwrite_output_dir,
            "replace the run that output_dir already holds", {"overwrite"});
  table.Add("load_in_4bit", &load_in_4bit,
            "QLoRA: hold the linears of the blocks in 4 bits; false: LoRA on 16 bits");
  quantization.Declare(table);
  table.Choice("compute_dtype", &compute_dtype, {"auto", "float32", "bfloat16"},
               "operands of matrix products; auto: bfloat16 where that is fastest",
               {"bnb_4bit_compute_dtype"});

  data.Declare(table);

  table.Section("Adapter");
  table.Add("adapter", &adapter, "PEFT directory to go on from, with its rank, scale and modules",
            {"lora_model_dir"});
  table.Add("lora_r", &lora_r, "rank of the update", {"r", "rank", "lora_rank"});
  table.Add("lora_alpha", &lora_alpha, "the update is scaled by lora_alpha / lora_r", {"alpha"});
  table.Add("lora_dropout", &lora_dropout, "share of the adapter's inputs that is dropped");
  table.Add("lora_target_modules", &lora_target_modules,
            "linears that get an adapter: names, one regular expression, or all-linear",
            {"target_modules", "lora_target"});
  table.Add("exclude_modules", &exclude_modules,
            "linears that get none: names, or one regular expression");
  table.Add("modules_to_save", &modules_to_save,
            "trained as a whole, in float32: embed_tokens, lm_head",
            {"lora_modules_to_save", "additional_target"});
  table.Add("layers_to_transform", &layers_to_transform,
            "layers with adapters: numbers and ranges such as 0,4-7; empty: all");
  table.Add("rank_pattern", &rank_pattern, "ranks of their own: down_proj=8,layers.0.*q_proj=32");
  table.Add("alpha_pattern", &alpha_pattern, "values of lora_alpha of their own, likewise");
  table.Add("use_dora", &use_dora, "DoRA: train the length of each row apart from its direction",
            {"peft_use_dora"});
  table.Choice("init_lora_weights", &init_lora_weights, {"default", "pissa", "olora", "loftq"},
               "what A and B start from; pissa, olora: the base; loftq: its quantization error",
               {"peft_init_lora_weights"});
  table.Add("neftune_noise_alpha", &neftune_noise_alpha,
            "NEFTune: noise on the embeddings in training; 5 is usual, 0: none",
            {"noisy_embedding_alpha"});
  table.Add("use_rslora", &use_rslora, "scale by lora_alpha / sqrt(lora_r)", {"peft_use_rslora"});

  table.Section("Optimization");
  table.Add("per_device_train_batch_size", &per_device_train_batch_size, "samples of a micro-batch",
            {"micro_batch_size", "batch_size"});
  table.Add("gradient_accumulation_steps", &gradient_accumulation_steps,
            "micro-batches of an optimizer step");
  table.Add("num_train_epochs", &num_train_epochs, "passes over the data",
            {"num_epochs", "epochs"});
  table.Add("max_steps", &max_steps, "optimizer steps; overrides num_train_epochs when positive");
  table.Choice("optim", &optim, OptimizerNames(),
               "8bit: moments in 8 bits; paged: moments in a file, beyond free memory",
               {"optimizer"});
  table.Add("learning_rate", &learning_rate, "the highest of the schedule", {"lr"});
  table.Add("loraplus_lr_ratio", &loraplus_lr_ratio,
            "LoRA+: the learning rate of B is so many times that of A; 16 is usual",
            {"loraplus_ratio"});
  table.Add("embedding_learning_rate", &embedding_learning_rate,
            "of modules_to_save; 0: learning_rate", {"embedding_lr", "loraplus_lr_embedding"});
  table.Choice("lr_scheduler_type", &lr_scheduler_type, SchedulerNames(),
               "how the learning rate changes", {"lr_scheduler"});
  table.Add("lr_scheduler_cycles", &lr_scheduler_cycles, "restarts of cosine_with_restarts",
            {"num_cycles"});
  table.Add("warmup_ratio", &warmup_ratio, "share of the steps in which it rises from 0");
  table.Add("warmup_steps", &warmup_steps, "overrides warmup_ratio when positive");
  table.Add("weight_decay", &weight_decay,
            "decoupled, as in AdamW; with optim sgd part of the gradient");
  table.Add("adam_beta1", &adam_beta1, "decay of the first moment");
  table.Add("adam_beta2", &adam_beta2, "decay of the second moment");
  table.Add("adam_epsilon", &adam_epsilon, "added to the root of the second moment");
  table.Add("sgd_momentum", &sgd_momentum, "of optim sgd");
  table.Add("max_grad_norm", &max_grad_norm, "gradients are scaled down to this norm; 0: never");
  table.Add("gradient_checkpointing", &gradient_checkpointing,
            "compute activations again in the backward pass where memory is short; false: never");
  table.Choice("recompute", &recompute, {"auto", "none", "attention", "mlp", "layer"},
               "what each layer computes again; auto: as little as fits into max_memory or into "
               "nine tenths of what is free. Results are the same bits");
  table.Add("seed", &seed, "of everything random");

  table.Section("Evaluation");
  table.Add("eval_steps", &eval_steps, "steps between evaluations; 0: after each epoch");
  table.Add("eval_on_start", &eval_on_start, "evaluate before the first step too");
  table.Choice("metric_for_best_model", &metric_for_best_model, {"loss", "token_accuracy"},
               "which evaluation is the best");
  table.Add("load_best_model_at_end", &load_best_model_at_end,
            "keep the checkpoint of the best evaluation, and end with its adapter");
  table.Add("early_stopping_patience", &early_stopping_patience,
            "end after so many evaluations in a row without a better one; 0: never");
  table.Add("early_stopping_threshold", &early_stopping_threshold,
            "an evaluation is better when it is better by more than this");

  table.Section("Run");
  table.Add("logging_steps", &logging_steps, "steps between printed lines");
  table.Add("report_to", &report_to,
            "logs beside train_log.jsonl: csv, tensorboard, both (all) or none");
  table.Add("logging_dir", &logging_dir, "where TensorBoard files go; empty: output_dir/runs");
  table.Add("sample_prompts", &sample_prompts,
            "texts to go on from, before and after training, into samples.jsonl");
  table.Add("sample_steps", &sample_steps, "steps between such samples as well; 0: none");
  table.Add("sample_max_new_tokens", &sample_max_new_tokens, "tokens of a sample at most");
  table.Add("save_steps", &save_steps,
            "steps between checkpoints; 0: only when the run is interrupted");
  table.Add("save_total_limit", &save_total_limit, "checkpoints to keep; 0: all");
  table.Add("max_skipped_steps", &max_skipped_steps,
            "end after so many steps in a row with a NaN or Inf; each is skipped and counted");
  table.Add("resume_from_checkpoint", &resume_from_checkpoint,
            "auto (the newest in output_dir), or a checkpoint directory");
  table.Add("max_memory", &max_memory, "refuse to start beyond this, for example 6GB");
  table.Add("threads", &threads, "0: one per usable core");
}

namespace {

// The recipe of Dettmers et al., arXiv:2305.14314, for 7B and 13B.
void ApplyPaper(OptionTable& table) {
  constexpr auto kPaper = std::to_array<std::pair<const char*, const char*>>({
      {"load_in_4bit", "true"},
      {"bnb_4bit_quant_type", "nf4"},
      {"bnb_4bit_use_double_quant", "true"},
      {"lora_r", "64"},
      {"lora_alpha", "16"},
      {"lora_dropout", "0.1"},
      {"lora_target_modules", "all-linear"},
      {"optim", "paged_adamw_32bit"},
      {"learning_rate", "2e-4"},
      {"lr_scheduler_type", "constant"},
      {"adam_beta2", "0.999"},
      {"weight_decay", "0"},
      {"max_grad_norm", "0.3"},
      {"per_device_train_batch_size", "1"},
      {"gradient_accumulation_steps", "16"},
  });
  for (const auto& [key, value] : kPaper) {
    if (!table.Find(key)->set) table.Set(key, value, "preset qlora-paper");
  }
}

}  // namespace

void TrainOptions::Complete(OptionTable& table) const {
  ApplyAdapter(*this, table);
  if (preset == "qlora-paper") ApplyPaper(table);
  table.Set("preset", "none", "preset");
  if (lr_scheduler_type == "constant" && !table.Find("warmup_ratio")->set) {
    table.Set("warmup_ratio", "0", "constant");
  }
  CheckIdle(*this);
}

std::vector<IdleOption> TrainOptions::Idle() const {
  struct Rule {
    const char* option;
    bool used;
    const char* reason;
  };
  const UpdateRule rule = ParseOptimizer(optim).rule;
  const bool eval = !data.eval_dataset.empty() || data.val_set_size != 0;
  const bool prompts = !sample_prompts.empty();
  const bool warms_up = lr_scheduler_type != "constant";
  constexpr const char* kNoEval =
      "there is no evaluation data; set eval_dataset or val_set_size, or leave it out";
  constexpr const char* kNoPrompts = "there are no sample_prompts; give some, or leave it out";
  constexpr const char* kNoWarmup =
      "lr_scheduler_type constant has no warm-up; use constant_with_warmup, or leave it out";
  constexpr const char* kNoAdam = "optim sgd does not read it; sgd_momentum is what it has";
  const auto rules = std::to_array<Rule>({
      {"recompute", gradient_checkpointing || recompute == "none",
       "gradient_checkpointing is false, so nothing is computed again; leave out one of them"},
      {"sgd_momentum", rule == UpdateRule::kSgd, "it is of optim sgd; leave it out"},
      {"adam_beta1", rule != UpdateRule::kSgd, kNoAdam},
      {"adam_beta2", rule != UpdateRule::kSgd, kNoAdam},
      {"adam_epsilon", rule == UpdateRule::kAdamW, "only AdamW divides; leave it out"},
      {"warmup_ratio", warms_up, kNoWarmup},
      {"warmup_steps", warms_up, kNoWarmup},
      {"lr_scheduler_cycles", lr_scheduler_type == "cosine_with_restarts",
       "it is of lr_scheduler_type cosine_with_restarts; leave it out"},
      {"embedding_learning_rate", !adapter.empty() || !modules_to_save.empty(),
       "it is that of modules_to_save, which names no module; leave it out"},
      {"eval_steps", eval, kNoEval},
      {"eval_on_start", eval, kNoEval},
      {"metric_for_best_model", eval, kNoEval},
      {"load_best_model_at_end", eval, kNoEval},
      {"early_stopping_patience", eval, kNoEval},
      {"early_stopping_threshold", eval, kNoEval},
      {"sample_steps", prompts, kNoPrompts},
      {"sample_max_new_tokens", prompts, kNoPrompts},
      {"logging_dir", ParseReportTo(report_to).tensorboard,
       "it is of TensorBoard files; add tensorboard to report_to, or leave it out"},
      {"save_total_limit", save_steps > 0 || load_best_model_at_end,
       "nothing is saved on the way; set save_steps, or leave it out"},
  });
  TrainOptions mine = *this;
  TrainOptions neutral;
  neutral.warmup_ratio = 0;  // its default asks for something
  OptionTable values;
  OptionTable neutral_values;
  mine.Declare(values);
  neutral.Declare(neutral_values);
  std::vector<IdleOption> idle;
  for (const Rule& row : rules) {
    const bool asks =
        values.Find(row.option)->ToString() != neutral_values.Find(row.option)->ToString();
    if (asks && !row.used) idle.push_back({row.option, row.reason});
  }
  return idle;
}

}  // namespace qlora
