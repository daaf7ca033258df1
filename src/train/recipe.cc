#include "train/recipe.h"

#include "base/check.h"
#include "train/lora_init.h"
#include "train/memory_plan.h"
#include "train/train_log.h"

namespace qlora {
namespace {

constexpr double kMostEpochs = 10000;  // whose steps are counted one by one

}  // namespace

void CheckIdle(const TrainOptions& options) {
  for (const IdleOption& idle : options.Idle()) {
    ThrowInvalidInput("{} would have no effect: {}", idle.name, idle.reason);
  }
}

void CheckOptions(const TrainOptions& o) {
  if (o.preset != "none") {
    ThrowInvalidInput("preset {} is not applied: call TrainOptions::Complete before", o.preset);
  }
  if (o.output_dir.empty()) ThrowInvalidInput("output_dir: expected a directory, found ''");
  const auto positive = [](const char* name, auto value) {
    if (!(value > 0)) ThrowInvalidInput("{} must be positive, found {}", name, value);
  };
  const auto share = [](const char* name, double value) {
    if (!(value >= 0 && value < 1)) {
      ThrowInvalidInput("{} must be at least 0 and below 1, found {}", name, value);
    }
  };
  const auto not_negative = [](const char* name, auto value) {
    if (!(value >= 0)) ThrowInvalidInput("{} must be 0 or more, found {}", name, value);
  };
  positive("lora_r", o.lora_r);
  CheckRank("lora_r", o.lora_r);
  positive("lora_alpha", o.lora_alpha);
  positive("per_device_train_batch_size", o.per_device_train_batch_size);
  positive("gradient_accumulation_steps", o.gradient_accumulation_steps);
  positive("logging_steps", o.logging_steps);
  positive("adam_epsilon", o.adam_epsilon);
  if (o.max_steps <= 0) {
    positive("num_train_epochs", o.num_train_epochs);
    if (o.num_train_epochs > kMostEpochs) {
      ThrowInvalidInput("num_train_epochs must be at most {}, found {}", kMostEpochs,
                        o.num_train_epochs);
    }
  }
  share("lora_dropout", o.lora_dropout);
  share("adam_beta1", o.adam_beta1);
  share("adam_beta2", o.adam_beta2);
  share("sgd_momentum", o.sgd_momentum);
  positive("loraplus_lr_ratio", o.loraplus_lr_ratio);
  positive("lr_scheduler_cycles", o.lr_scheduler_cycles);
  not_negative("embedding_learning_rate", o.embedding_learning_rate);
  share("warmup_ratio", o.warmup_ratio);
  not_negative("learning_rate", o.learning_rate);
  not_negative("weight_decay", o.weight_decay);
  not_negative("max_grad_norm", o.max_grad_norm);
  not_negative("warmup_steps", o.warmup_steps);
  not_negative("save_steps", o.save_steps);
  not_negative("eval_steps", o.eval_steps);
  not_negative("save_total_limit", o.save_total_limit);
  not_negative("early_stopping_patience", o.early_stopping_patience);
  not_negative("early_stopping_threshold", o.early_stopping_threshold);
  not_negative("sample_steps", o.sample_steps);
  positive("sample_max_new_tokens", o.sample_max_new_tokens);
  ParseReportTo(o.report_to);
  positive("max_skipped_steps", o.max_skipped_steps);
  not_negative("neftune_noise_alpha", o.neftune_noise_alpha);
  if (o.init_lora_weights != "default") {
    const std::string init = "init_lora_weights " + o.init_lora_weights;
    if (!o.adapter.empty()) {
      ThrowInvalidInput("{} sets A and B anew; it cannot be combined with adapter", init);
    }
    if (o.use_dora) ThrowInvalidInput("{} cannot be combined with use_dora", init);
    if (DoublesRank(ParseLoraInit(o.init_lora_weights)) && o.weight_decay != 0) {
      ThrowInvalidInput("{} holds half of the adapter fixed; it needs weight_decay 0", init);
    }
  }
  if (o.embedding_learning_rate > 0) positive("learning_rate", o.learning_rate);  // its schedule
  TrainOptions asked = o;
  if (o.warmup_ratio == TrainOptions().warmup_ratio) asked.warmup_ratio = 0;  // the default stands
  CheckIdle(asked);
  if (o.data.dataset.empty()) ThrowInvalidInput("no dataset given: set dataset to a file");
  if (!o.max_memory.empty()) ParseBytes(o.max_memory);
}

OptimizerType OptimizerOf(const TrainOptions& options) {
  OptimizerType type = ParseOptimizer(options.optim);
  type.momentum = options.sgd_momentum > 0;
  return type;
}

UpdateArgs UpdateArgsOf(const TrainOptions& options) {
  UpdateArgs args;
  const bool is_sgd = OptimizerOf(options).rule == UpdateRule::kSgd;
  args.beta1 = is_sgd ? options.sgd_momentum : options.adam_beta1;
  args.beta2 = options.adam_beta2;
  args.epsilon = options.adam_epsilon;
  args.weight_decay = options.weight_decay;
  return args;
}

GroupRates GroupRatesOf(const TrainOptions& options) {
  GroupRates rates;
  rates.b = options.loraplus_lr_ratio;
  if (options.embedding_learning_rate > 0 && options.learning_rate > 0) {
    rates.embedding = options.embedding_learning_rate / options.learning_rate;
  }
  return rates;
}

}  // namespace qlora
