// Options of training: the table of their names and help texts, and presets.
//
// Names come from transformers' TrainingArguments, PEFT's LoraConfig and TRL's SFTConfig, so that
// users need not learn new ones; aliases come from Axolotl, LLaMA-Factory and mlx-lm. Help is read
// alone, without its neighbours, and in the JSON Schema of editors: each text names its subject.
#include "qlora/train_options.h"

#include <array>
#include <utility>

#include "adapter/lora_init.h"
#include "base/check.h"
#include "data/data_options.h"
#include "log/run_log.h"
#include "model/shared_options.h"
#include "objective/objective.h"
#include "plan/check_options.h"
#include "plan/continued_adapter.h"
#include "plan/memory_plan.h"
#include "plan/preference_options.h"
#include "qlora/options.h"
#include "step/optimizer.h"
#include "step/schedule.h"

namespace qlora {

// --help shows options and sections in this order.
void TrainOptions::Declare(OptionTable& table) {
  DeclareModel(table);
  data.Declare(table);
  DeclareAdapter(table);
  preference.Declare(table);
  DeclareAnchor(table);
  table.Section("Optimization");
  DeclareBatches(table);
  DeclareOptimizer(table);
  DeclareComputation(table);
  DeclareEvaluation(table);
  DeclareRun(table);
}

void TrainOptions::DeclareModel(OptionTable& table) {
  table.Section("Model");
  table.Choice("preset", &preset, {"none", "qlora-paper"},
               "a named set of option values; options that you set yourself win");
  DeclareModelPath(table, &model_name_or_path);
  table.AddPath("output_dir", &output_dir, "folder for the adapter, logs and checkpoints");
  table.Add("overwrite_output_dir", &overwrite_output_dir,
            "replace a run that output_dir already holds", {"overwrite"});
  table.Add("load_in_4bit", &load_in_4bit,
            "true: QLoRA, with the linear layers of the transformer blocks in 4 bits; false: LoRA "
            "on the 16-bit model");
  quantization.Declare(table);
  DeclareComputeType(table, &compute_dtype);
  table.Add("int8_backward", &int8_backward,
            "with compute_dtype int8: gradients through quantized weights are products in 8 bits, "
            "too; false: in bfloat16");
  DeclareDevice(table, &device);
}

// An option of this section that is given must agree with `adapter`, whose values count as set.
void TrainOptions::DeclareAdapter(OptionTable& table) {
  table.Section("Adapter");
  table.AddPath("adapter", &adapter,
                "PEFT adapter to continue training, with its own rank, scale and modules",
                {"lora_model_dir"});
  table.Add("lora_r", &lora_r, "rank of the LoRA matrices", {"r", "rank", "lora_rank"});
  table.Add("lora_alpha", &lora_alpha, "the LoRA update is scaled by lora_alpha / lora_r",
            {"alpha"});
  table.Add("lora_dropout", &lora_dropout,
            "fraction of the adapter's inputs that dropout sets to zero");
  table.Add("lora_target_modules", &lora_target_modules,
            "linear layers that get an adapter: names, one regular expression, or all-linear",
            {"target_modules", "lora_target"});
  table.Add("exclude_modules", &exclude_modules,
            "linear layers that get no adapter: names, or one regular expression");
  table.Add("modules_to_save", &modules_to_save,
            "modules trained in full, in float32: embed_tokens, lm_head",
            {"lora_modules_to_save", "additional_target"});
  table.Add("layers_to_transform", &layers_to_transform,
            "layers that get adapters: numbers and ranges such as 0,4-7; empty: all layers");
  table.Add("rank_pattern", &rank_pattern,
            "values of lora_r by module: down_proj=8,layers.0.*q_proj=32");
  table.Add("alpha_pattern", &alpha_pattern, "values of lora_alpha by module: down_proj=16");
  table.Add("use_dora", &use_dora,
            "DoRA: train the length of each weight row separately from its direction",
            {"peft_use_dora"});
  table.Choice(
      "init_lora_weights", &init_lora_weights, LoraInitNames(),
      "initial LoRA matrices; pissa, olora: from the base weights; loftq: from their quantization "
      "error",
      {"peft_init_lora_weights"});
  table.Add("neftune_noise_alpha", &neftune_noise_alpha,
            "NEFTune: amount of noise added to the embeddings in training; 5 is usual, 0: no noise",
            {"noisy_embedding_alpha"});
  table.Add("label_smoothing_factor", &label_smoothing_factor,
            "label smoothing: the share of the target's probability that training spreads over all "
            "tokens, or over the options of a question; 0: none. Evaluation has none",
            {"label_smoothing"});
  table.Choice("objective", &objective, {"auto", "sft", "decision"},
               "what is trained: sft: texts and answers; decision: probabilities of answers to "
               "typed questions; auto: decision for records of questions, else sft");
  table.Add("brier_weight", &brier_weight,
            "objective decision: weight of the Brier score beside the cross-entropy");
  table.Add("ordinal_weight", &ordinal_weight,
            "objective decision: weight of the distance from the right level of score questions");
  table.Add("use_rslora", &use_rslora, "rsLoRA: scale the LoRA update by lora_alpha / sqrt(lora_r)",
            {"peft_use_rslora"});
}

void TrainOptions::DeclareAnchor(OptionTable& table) {
  table.Section("Anchor");
  table.AddPath(
      "anchor", &anchor,
      "files of general texts, in any format of dataset, on which training keeps the model "
      "near its base: anchor_weight times the KL divergence from the base to the model is "
      "added to what is minimized");
  table.Add("anchor_weight", &anchor_weight,
            "weight of the divergence on anchor beside the loss; more keeps more of the base");
  table.Add("anchor_tokens", &anchor_tokens,
            "tokens of anchor that join each optimizer step, at most");
}

void TrainOptions::DeclareBatches(OptionTable& table) {
  table.Add("per_device_train_batch_size", &per_device_train_batch_size, "samples in a micro-batch",
            {"micro_batch_size", "batch_size"});
  table.Add("gradient_accumulation_steps", &gradient_accumulation_steps,
            "micro-batches in an optimizer step, for each rank of several");
  table.Add(
      "global_batch_size", &global_batch_size,
      "samples in an optimizer step of all ranks, in place of gradient_accumulation_steps: the "
      "same run on any number of ranks; 0: not set");
  table.Add(
      "reduction_groups", &reduction_groups,
      "parts of a step whose gradients are added in a fixed order, so that ranks do not change "
      "the sum; no more ranks than parts can share a step");
  table.Add("pipeline_stages", &pipeline_stages,
            "number of ranks that share out the layers of a model larger than one machine; other "
            "ranks are further replicas");
  table
      .Choice("ddp_backend", &ddp_backend, {"auto", "mpi", "tcp"},
              "how ranks reach each other, which their launcher decides; mpi, tcp: ranks of the "
              "other kind are refused")
      .hint = "qlora computes on the CPU, whose ranks meet over mpi or tcp";
  table.Add("num_train_epochs", &num_train_epochs, "number of passes over the data",
            {"num_epochs", "epochs"});
  table.Add("max_steps", &max_steps,
            "number of optimizer steps, in place of num_train_epochs; -1: not set");
}

void TrainOptions::DeclareOptimizer(OptionTable& table) {
  table.Choice(
      "optim", &optim, OptimizerNames(),
      "optimizer; 8bit: moments in 8 bits; paged: moments in a file that can exceed free memory",
      {"optimizer"});
  table.Add("learning_rate", &learning_rate, "highest learning rate of the schedule", {"lr"});
  table.Add("loraplus_lr_ratio", &loraplus_lr_ratio,
            "LoRA+: ratio of B's learning rate to A's; 16 is usual, 1: no LoRA+",
            {"loraplus_ratio"});
  table.Add("embedding_learning_rate", &embedding_learning_rate,
            "learning rate for modules_to_save; 0: as learning_rate",
            {"embedding_lr", "loraplus_lr_embedding"});
  table
      .Choice("lr_scheduler_type", &lr_scheduler_type, SchedulerNames(), "learning rate schedule",
              {"lr_scheduler"})
      .hint =
      "reduce_lr_on_plateau and greedy follow the losses of a run, which no schedule here does";
  table.Add("lr_scheduler_cycles", &lr_scheduler_cycles,
            "number of cycles of lr_scheduler_type cosine_with_restarts", {"num_cycles"});
  table.Add("lr_scheduler_waves", &lr_scheduler_waves,
            "waves of a cosine without restarts (num_cycles in transformers); 0.5: it falls once");
  table.Add("lr_scheduler_timescale", &lr_scheduler_timescale,
            "steps in which lr_scheduler_type inverse_sqrt falls to 0.71 times its peak; 0: as "
            "many as the warm-up has, or 10000 without one",
            {"timescale"});
  table.Add("min_lr", &min_lr,
            "learning rate at which a schedule that falls ends; 0: the end of lr_scheduler_type, "
            "of polynomial 1e-7",
            {"lr_end"});
  table.Add("min_lr_rate", &min_lr_rate, "min_lr as a fraction of learning_rate", {"min_lr_ratio"});
  table.Add("lr_scheduler_power", &lr_scheduler_power, "power of lr_scheduler_type polynomial");
  table.Add(
      "lr_decay_steps", &lr_decay_steps,
      "last steps of lr_scheduler_type warmup_stable_decay, in which the learning rate falls; "
      "0: a tenth of the run",
      {"num_decay_steps"});
  table.Choice("lr_decay_type", &lr_decay_type, {"cosine", "linear", "1-sqrt"},
               "how the learning rate of lr_scheduler_type warmup_stable_decay falls",
               {"decay_type"});
  table.Add("lr_stable_steps", &lr_stable_steps,
            "steps of lr_scheduler_type warmup_stable_decay between warm-up and decay; -1: what "
            "these leave of the run",
            {"num_stable_steps"});
  table.Choice("lr_warmup_type", &lr_warmup_type, {"linear", "cosine", "1-sqrt"},
               "how the learning rate of lr_scheduler_type warmup_stable_decay rises",
               {"warmup_type"});
  table.Add("lr_warmup_rate", &lr_warmup_rate,
            "share of learning_rate in the first step of lr_scheduler_type "
            "cosine_warmup_with_min_lr; -1: one over the warm-up steps",
            {"warmup_lr_rate"});
  table.Add("warmup_ratio", &warmup_ratio,
            "fraction of steps spent warming up the learning rate from 0");
  table.Add("warmup_steps", &warmup_steps,
            "steps spent warming up the learning rate; they override warmup_ratio, and 0 alone "
            "means none");
  table.Add("weight_decay", &weight_decay,
            "weight decay, decoupled as in AdamW; with optim sgd it is part of the gradient");
  table.Add("adam_beta1", &adam_beta1, "decay rate of the first moment of the optimizer");
  table.Add("adam_beta2", &adam_beta2, "decay rate of the second moment of the optimizer");
  table.Add("adam_epsilon", &adam_epsilon,
            "constant that AdamW adds to the root of the second moment");
  table.Add("sgd_momentum", &sgd_momentum, "SGD momentum");
  table.Add("max_grad_norm", &max_grad_norm,
            "gradient clipping: gradients of a larger norm are scaled down to it; 0: no clipping");
}

void TrainOptions::DeclareComputation(OptionTable& table) {
  table.Add(
      "gradient_checkpointing", &gradient_checkpointing,
      "recompute activations in the backward pass when memory is short; false: never recompute");
  std::vector<std::string> recompute_levels = RecomputeNames();
  recompute_levels.insert(recompute_levels.begin(), "auto");
  table.Choice(
      "recompute", &recompute, std::move(recompute_levels),
      "activations that each layer recomputes; auto: as few as fit into max_memory or nine "
      "tenths of free memory. The results are bit-identical");
  table.Add("seed", &seed, "random seed");
}

void TrainOptions::DeclareEvaluation(OptionTable& table) {
  table.Section("Evaluation");
  table.Add("eval_steps", &eval_steps,
            "optimizer steps between evaluations; 0: evaluate after each epoch");
  table.Add("evals_per_epoch", &evals_per_epoch,
            "evaluations in an epoch, the last at its end, in place of eval_steps; 0: not set");
  table.Add("eval_ratio", &eval_ratio,
            "fraction of the run between evaluations, in place of eval_steps; 0: not set");
  table.Add("eval_on_start", &eval_on_start, "evaluate before the first step as well");
  table.Choice("metric_for_best_model", &metric_for_best_model,
               {kBestMetrics.begin(), kBestMetrics.end()},
               "metric that decides which evaluation is the best");
  table.Add("load_best_model_at_end", &load_best_model_at_end,
            "keep the checkpoint of the best evaluation, and end the run with its adapter");
  table.Add(
      "early_stopping_patience", &early_stopping_patience,
      "stop after this many consecutive evaluations without improvement; 0: never stop early");
  table.Add("early_stopping_threshold", &early_stopping_threshold,
            "smallest improvement that counts as a better evaluation");
}

void TrainOptions::DeclareRun(OptionTable& table) {
  table.Section("Run");
  table.Add("logging_steps", &logging_steps, "optimizer steps between printed lines");
  table.Add("report_to", &report_to,
            "logs besides train_log.jsonl: csv, tensorboard, all (both) or none");
  table.AddPath("logging_dir", &logging_dir,
                "folder for TensorBoard files; empty: output_dir/runs");
  table.Add(
      "sample_prompts", &sample_prompts,
      "prompts to answer before and after training, separated by commas (a list in YAML or JSON "
      "may have prompts with commas); answers go to samples.jsonl; prompts use the data's layout");
  table.Add("sample_raw", &sample_raw, "use sample_prompts verbatim, without the prompt layout");
  table.Add("sample_steps", &sample_steps,
            "optimizer steps between answers to sample_prompts; 0: none in between");
  table.Add("sample_max_new_tokens", &sample_max_new_tokens,
            "maximum number of tokens in an answer to one of sample_prompts");
  table.Add("save_steps", &save_steps,
            "optimizer steps between checkpoints; 0: only one, of the last step");
  table.Add("saves_per_epoch", &saves_per_epoch,
            "checkpoints in an epoch, the last at its end, in place of save_steps; 0: not set");
  table.Add("save_ratio", &save_ratio,
            "fraction of the run between checkpoints, in place of save_steps; 0: not set");
  table.Add("save_total_limit", &save_total_limit,
            "maximum number of checkpoints to keep, the best one included; 0: all");
  table.Add("max_skipped_steps", &max_skipped_steps,
            "stop after this many consecutive steps with a NaN or Inf, which are skipped");
  table.AddPath("resume_from_checkpoint", &resume_from_checkpoint,
                "checkpoint to resume from: auto (the newest in output_dir), or a directory");
  table.Add("max_memory", &max_memory,
            "memory limit of the run, for example 6GB; a larger plan is refused");
  table.Add("threads", &threads, "number of threads; 0: one per usable core");
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

// An option that depends on others, with the condition under which it is used.
struct IdleRule {
  const char* option;
  bool used;
  const char* reason;
};

std::vector<IdleRule> ScheduleRules(const TrainOptions& options) {
  constexpr const char* kNoWarmup =
      "lr_scheduler_type constant has no warm-up; use constant_with_warmup, or leave it out";
  constexpr const char* kNoEnd =
      "the learning rate of lr_scheduler_type does not fall to an end; leave it out";
  constexpr const char* kNoDecay =
      "it is an option of lr_scheduler_type warmup_stable_decay; leave it out";
  const SchedulerType schedule = ParseSchedulerType(options.lr_scheduler_type);
  const bool warms_up = schedule != SchedulerType::kConstant;
  const bool decays_last = schedule == SchedulerType::kWarmupStableDecay;
  return {
      {"warmup_ratio", warms_up, kNoWarmup},
      {"warmup_steps", warms_up, kNoWarmup},
      {"lr_scheduler_cycles", schedule == SchedulerType::kCosineWithRestarts,
       "it is an option of lr_scheduler_type cosine_with_restarts; other cosines have "
       "lr_scheduler_waves"},
      {"lr_scheduler_waves",
       HasWaves(schedule) && !(decays_last && options.lr_decay_type != "cosine"),
       "it is an option of schedules with a cosine that falls once; leave it out"},
      {"lr_scheduler_timescale", schedule == SchedulerType::kInverseSqrt,
       "it is an option of lr_scheduler_type inverse_sqrt; leave it out"},
      {"lr_warmup_rate", schedule == SchedulerType::kCosineWarmupWithMinLr,
       "it is an option of lr_scheduler_type cosine_warmup_with_min_lr; leave it out"},
      {"min_lr", HasEnd(schedule), kNoEnd},
      {"min_lr_rate", HasEnd(schedule), kNoEnd},
      {"lr_scheduler_power", schedule == SchedulerType::kPolynomial,
       "it is an option of lr_scheduler_type polynomial; leave it out"},
      {"lr_decay_steps", decays_last, kNoDecay},
      {"lr_decay_type", decays_last, kNoDecay},
      {"lr_stable_steps", decays_last, kNoDecay},
      {"lr_warmup_type", decays_last, kNoDecay},
  };
}

}  // namespace

// The adapter comes first: its values count as set, and a preset does not change them. `table`
// writes into this object, which is why the checks at the end see the new values.
void TrainOptions::Complete(OptionTable& table) const {
  ApplyAdapter(*this, table);
  if (preset == "qlora-paper") ApplyPaper(table);
  table.Set("preset", "none", "preset");
  const bool no_warmup =
      lr_scheduler_type == "constant" || (table.Find("warmup_steps")->set && warmup_steps == 0);
  if (no_warmup && !table.Find("warmup_ratio")->set) {
    table.Set("warmup_ratio", "0", lr_scheduler_type);
  }
  const bool has_end = table.Find("min_lr")->set || table.Find("min_lr_rate")->set;
  if (lr_scheduler_type.ends_with("with_min_lr") && !has_end) {
    ThrowInvalidInput("lr_scheduler_type {} needs min_lr or min_lr_rate", lr_scheduler_type);
  }
  if (TrainsPreferences(*this) && !table.Find("learning_rate")->set) {
    table.Set("learning_rate", fmt::format("{}", kUsualPreferenceRate), "preference_loss");
  }
  preference.Complete(table, label_smoothing_factor);
  CheckRanges(*this);
  TrainOptions found = *this;
  try {
    found.data = WithFoundEvaluation(data);
  } catch (const Error&) {
    return;  // data that are not there are named when the run is planned, and all is checked again
  }
  CheckIdle(found);
}

// An option has no effect when its value differs from the neutral one and another option keeps it
// from being used. The values are compared as text, because only the table of the command line
// knows which options were set, and callers of the library have no such table.
std::vector<IdleOption> TrainOptions::Idle() const {
  const UpdateRule rule = ParseOptimizer(optim).rule;
  const bool eval = !data.eval_dataset.empty() || data.val_set_size != 0;
  const bool prompts = !sample_prompts.empty();
  const bool saves = save_steps > 0 || saves_per_epoch > 0 || save_ratio > 0;
  constexpr const char* kNoEval =
      "there is no evaluation data; set eval_dataset or val_set_size, or leave it out";
  constexpr const char* kNoAnchor = "there is no anchor; name texts, or leave it out";
  constexpr const char* kNoPrompts = "there are no sample_prompts; give some, or leave it out";
  constexpr const char* kNoAdam = "optim sgd does not use it; set sgd_momentum, or leave it out";
  std::vector<IdleRule> rules = {
      {"recompute", gradient_checkpointing || recompute == "none",
       "gradient_checkpointing is false, so nothing is recomputed; leave out one of the two"},
      {"int8_backward", compute_dtype == "int8",
       "it is an option of compute_dtype int8; set compute_dtype int8, or leave it out"},
      {"sgd_momentum", rule == UpdateRule::kSgd, "it is an option of optim sgd; leave it out"},
      {"adam_beta1", rule != UpdateRule::kSgd, kNoAdam},
      {"adam_beta2", rule != UpdateRule::kSgd, kNoAdam},
      {"adam_epsilon", rule == UpdateRule::kAdamW, "only AdamW uses it; leave it out"},
      {"embedding_learning_rate", !adapter.empty() || !modules_to_save.empty(),
       "it is the learning rate of modules_to_save, which names no module; leave it out"},
      {"anchor_weight", !anchor.empty(), kNoAnchor},
      {"anchor_tokens", !anchor.empty(), kNoAnchor},
      {"eval_steps", eval, kNoEval},
      {"evals_per_epoch", eval, kNoEval},
      {"eval_ratio", eval, kNoEval},
      {"eval_on_start", eval, kNoEval},
      {"metric_for_best_model", eval, kNoEval},
      {"load_best_model_at_end", eval, kNoEval},
      {"early_stopping_patience", eval, kNoEval},
      {"early_stopping_threshold", eval, kNoEval},
      {"sample_steps", prompts, kNoPrompts},
      {"sample_max_new_tokens", prompts, kNoPrompts},
      {"sample_raw", prompts, kNoPrompts},
      {"logging_dir", ParseReportTo(report_to).tensorboard,
       "it is the folder of TensorBoard files; add tensorboard to report_to, or leave it out"},
      {"save_total_limit", saves || load_best_model_at_end,
       "no checkpoint is saved during training; set save_steps, or leave it out"},
  };
  for (const IdleRule& row : ScheduleRules(*this)) rules.push_back(row);
  // Declare binds a table to options that the table may change, so it is given copies.
  TrainOptions mine = *this;
  TrainOptions neutral;
  neutral.warmup_ratio = 0;  // no warm-up; the default is one
  OptionTable values;
  OptionTable neutral_values;
  mine.Declare(values);
  neutral.Declare(neutral_values);
  std::vector<IdleOption> idle;
  for (const IdleRule& row : rules) {
    const bool asks =
        values.Find(row.option)->ToString() != neutral_values.Find(row.option)->ToString();
    if (asks && !row.used) idle.push_back({row.option, row.reason});
  }
  for (IdleOption& one : IdlePreferenceFields(preference, label_smoothing_factor))
    idle.push_back(std::move(one));
  return idle;
}

}  // namespace qlora
